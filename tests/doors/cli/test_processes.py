"""`earnest serve` and `earnest worker`: how they begin, how they end, and what they share."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from earnest.testing.simulator import Simulator
from tests.doors.cli.program import Program, get

pytestmark = pytest.mark.fault
SLEEP = '{"seconds": 600}'


def sleeping(here: Program) -> str:
    """A run that works until it is stopped; it is running when this returns."""
    run_id = str(here.good("runs", "submit", "demo.sleep", SLEEP, "--json").json["id"])
    here.wait_for_event(run_id, "attempt.started")
    return run_id


def status_of(here: Program, run_id: str) -> str:
    return str(here.good("runs", "show", run_id, "--json").json["status"])


def test_a_server_answers_works_and_ends_with_code_0(here: Program) -> None:
    with here.started("serve", "--port", "0") as server:
        assert get(server.url, "/readyz").json()["status"] == "ready"
        assert server.ready["pid"] == server.pid
        here.good("runs", "submit", "demo.echo", '{"message": "x"}', "--watch")
        assert server.end() == 0
        port = server.url.rpartition(":")[2]
        with here.started("serve", "--port", port) as again:
            assert again.url == server.url


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_hands_back_what_does_not_end_in_time(
    here: Program, number: signal.Signals
) -> None:
    with here.started("worker", "--drain", "0.1") as worker:
        run_id = sleeping(here)
        worker.signal(number)
        assert worker.wait() == 0
    assert status_of(here, run_id) == "queued"


def test_a_draining_server_says_so_and_a_second_signal_ends_it_at_once(here: Program) -> None:
    with here.started("serve", "--port", "0", "--drain", "600") as server:
        run_id = sleeping(here)
        server.signal()
        server.wait_for_log("worker.draining")
        answer = get(server.url, "/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (503, "draining")
        server.signal()
        assert server.wait(20) == 0
    assert status_of(here, run_id) == "queued"


def test_a_call_on_the_wire_is_left_in_doubt_by_a_second_signal_and_taken_over(
    here: Program, simulator: Simulator
) -> None:
    simulator.put_fault("bank", "slow", delay_ms=20_000, match="wire-1")
    refund = '{"order_id": "wire-1", "amount": "20.00", "bank": "opaque"}'
    run_id = here.good("runs", "submit", "demo.refund", refund, "--json").json["id"]
    with here.started("worker", "--drain", "600") as worker:
        here.wait_for_event(run_id, "operation.submitting")
        worker.signal()
        worker.wait_for_log("worker.draining")
        started_at = time.monotonic()
        worker.signal()
        assert worker.wait() == 0
        assert time.monotonic() - started_at < 8, "the call itself would take 10 seconds"
    with here.started("worker"):
        here.wait_for_event(run_id, "run.unknown")
    assert status_of(here, run_id) == "unknown"


def test_a_worker_whose_starter_is_gone_ends(here: Program) -> None:
    with here.started("worker", "--stop-with-stdin", stdin=subprocess.PIPE) as worker:
        sleeping(here)
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        worker.process.stdin = None
        assert worker.wait(20) == 0


def test_an_interrupted_command_ends_with_code_130_and_says_nothing(here: Program) -> None:
    run_id = here.good("runs", "submit", "demo.echo", '{"message": "x"}', "--json").json["id"]
    with here.started("runs", "watch", run_id) as watching:
        watching.signal(signal.SIGINT)
        assert watching.wait() == 130
        assert watching.log.read_text() == ""


def test_a_worker_dies_where_it_is_told_to(here: Program) -> None:
    here.good("runs", "submit", "demo.echo", '{"message": "x"}')
    with here.on(EARNEST_CRASH_AT="claim.after").started("worker") as worker:
        assert worker.wait() == -signal.SIGKILL


def test_a_database_that_may_lose_commits_is_warned_of_loudly(here: Program) -> None:
    with here.started("serve", "--port", "0") as server:
        warned = get(server.url, "/readyz").json()["warnings"]
        log = server.log.read_text()
    for setting in ("fsync", "synchronous_commit"):
        assert any(warning.startswith(f"{setting} is off") for warning in warned)
        assert f"{setting} is off: a crash of the machine can lose accepted work" in log


def test_what_a_process_logs_can_be_json(here: Program) -> None:
    with here.started("worker", "--log", "json") as worker:
        assert worker.end() == 0
        lines = [json.loads(line) for line in worker.log.read_text().splitlines()]
    assert {"worker.ready", "worker.ended"} <= {line["event"] for line in lines}
    assert all(line["level"] and line["timestamp"] for line in lines)


# ---- on an embedded database -------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an empty database."""
    folder = tmp_path_factory.mktemp("embedded")
    made = Program(folder, {"EARNEST_HOME": str(folder / "home")})
    assert "applied engine/0001_engine" in made.good("migrate").out
    return folder / "home"


@pytest.fixture
def embedded(program: Program, home: Path) -> Program:
    """The program on a home of its own, with the demo's app."""
    return program.on(EARNEST_HOME=str(home), EARNEST_APP="earnest.apps.demo.app:app")


def test_two_servers_on_one_home_share_its_database(embedded: Program) -> None:
    with embedded.started("serve", "--port", "0", "--no-worker") as first:
        port = first.url.rpartition(":")[2]
        line = embedded.outside.refused(2, "serve", "--port", port)
        assert line.startswith(f"port {port} on 127.0.0.1 is taken")
        with embedded.started("serve", "--port", "0") as second:
            assert first.end() == 0
            embedded.good("runs", "submit", "demo.echo", '{"message": "x"}', "--watch")
            assert second.end() == 0


def test_a_database_whose_server_was_killed_with_all_its_users_is_found_again(
    embedded: Program, home: Path
) -> None:
    with embedded.started("serve", "--port", "0") as server:
        run_id = sleeping(embedded)
        postmaster = int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
        server.process.kill()
        server.wait()
        subprocess.run(["kill", "-9", str(postmaster)], check=True)
    with embedded.started("worker") as worker:
        told = embedded.wait_for_event(run_id, '{"attempt":2}')
        assert "attempt.lost" in told
        assert embedded.good("runs", "cancel", run_id).out.split()[1] == "requested"
        assert worker.end() == 0


def test_a_command_joins_a_home_and_starts_no_worker(embedded: Program) -> None:
    run_id = embedded.good("runs", "submit", "demo.echo", '{"message": "x"}', "--json").json["id"]
    watched = embedded.run("runs", "watch", run_id, "--timeout", "1").out
    assert "run.submitted" in watched
    assert "attempt.started" not in watched


def test_a_home_tells_commands_what_to_load(embedded: Program, home: Path) -> None:
    (home / "earnest.env").write_text("EARNEST_APP=earnest.apps.demo.app:app\nPATH=/nowhere\n")
    bare = Program(embedded.folder, {"EARNEST_HOME": str(home)})
    assert bare.good("runs", "submit", "demo.echo", '{"message": "x"}', "--json").json["id"]
    (home / "earnest.env").unlink()
    assert "EARNEST_APP" in bare.refused(1, "runs", "submit", "demo.echo", '{"message": "x"}')


def test_a_worker_says_how_it_is_where_it_is_told_to(here: Program, busy_port: int) -> None:
    with here.started("worker", "--metrics-port", "0") as worker:
        url = worker.ready["metrics_url"]
        here.good("runs", "submit", "demo.echo", '{"message": "m"}', "--watch")
        told = get(url.removesuffix("/metrics"), "/metrics").text
        assert 'earnest_runs_claimed_total{kind="demo.echo",lane="default"} 1.0' in told
        assert "earnest_database_up 1.0" in told
        assert get(url.removesuffix("/metrics"), "/readyz").status_code == 200
        assert get(url.removesuffix("/metrics"), "/v1/runs").status_code == 401
        assert worker.end() == 0
    told = here.refused(2, "worker", "--metrics-port", str(busy_port))
    assert told.endswith("is taken; choose another with --metrics-port")
