"""`earnest demo`: what outside programs rely on, and that whatever is killed comes again."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from earnest.testing.simulator import Simulator
from tests.doors.cli.program import Program

pytestmark = [pytest.mark.fault, pytest.mark.xdist_group("demo")]
SECONDS = 60.0
ROLES = {
    "demo": ["member", "member2", "approver", "operator", "admin"],
    "other": ["member", "operator"],
}


@dataclass
class Demo:
    """A demo that runs."""

    process: subprocess.Popen[str]
    home: Path

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "demo.json").read_text())
        return found

    def wait_for_line(self, words: str) -> str:
        for line in iter(self.lines.readline, ""):
            if words in line:
                return line
        raise AssertionError(f"it ended without {words!r}")

    @property
    def lines(self) -> IO[str]:
        return cast("IO[str]", self.process.stdout)

    def kill(self, name: str) -> dict[str, Any]:
        """Kills a part and returns what `demo.json` says once it was started again."""
        os.kill(self.read()["pids"][name], signal.SIGKILL)
        self.wait_for_line(f"the {name} had ended and was started again")
        return self.read()

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)

    def call(self, who: str, method: str, path: str, **more: Any) -> httpx2.Response:
        """Asks the API as a principal of scope `demo`."""
        facts = self.read()
        scope, _, principal = who.rpartition("/")
        token = facts["scopes"][scope or "demo"]["tokens"][principal]
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        url = facts["url"] + path
        return httpx2.request(method, url, headers=headers, timeout=20, **more)

    def submit(self, kind: str, value: Any, who: str = "member") -> str:
        key = {"Idempotency-Key": os.urandom(8).hex()}
        answer = self.call(
            who, "POST", "/v1/runs", json={"kind": kind, "input": value}, headers=key
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    @property
    def program(self) -> Program:
        """The command line on the demo's own home."""
        return Program(self.home, {"EARNEST_HOME": str(self.home)})

    def follow(self, run_id: str, seconds: float) -> str:
        """What the command line tells of a run in that time."""
        return self.program.run("runs", "watch", run_id, "--timeout", str(seconds)).out

    def watch(self, run_id: str) -> dict[str, Any]:
        """The run when it has ended."""
        told = self.follow(run_id, 40)
        assert "given up" not in told, told
        found: dict[str, Any] = self.call("operator", "GET", f"/v1/runs/{run_id}").json()
        return found


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("EARNEST_")}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "earnest", *words]


def earnest(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def complaint(*words: str, **variables: str) -> str:
    """The one line of a command that must fail."""
    done = earnest(*words, **variables)
    assert done.returncode not in (0, None)
    [line] = done.stderr.splitlines()
    return line.removeprefix("earnest: ")


@contextmanager
def demo_on(home: Path, *words: str) -> Iterator[Demo]:
    """A demo on a free port, from when it says that it is ready. It is stopped at the end."""
    process = subprocess.Popen(
        command("demo", "--home", str(home), "--port", "0", *words),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    demo = Demo(process, home)
    try:
        demo.wait_for_line("Tokens and process numbers are in")
        yield demo
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(SECONDS)
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for the tests that leave it as it was."""
    with demo_on(tmp_path_factory.mktemp("demo") / "home") as started:
        yield started


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


# ---- the contract ------------------------------------------------------------------------------


def test_demo_json_says_where_everything_is_and_only_its_owner_may_read_it(demo: Demo) -> None:
    facts = demo.read()
    assert set(facts) == {"url", "simulator_url", "pids", "scopes"}
    assert set(facts["pids"]) == {"server", "worker", "node"}
    assert facts["pids"]["node"] is None
    for name, words in (("server", "serve"), ("worker", "worker")):
        assert words in psutil.Process(facts["pids"][name]).cmdline()
    assert {name: list(scope["tokens"]) for name, scope in facts["scopes"].items()} == ROLES
    assert stat.S_IMODE((demo.home / "demo.json").stat().st_mode) == 0o600


def test_everything_answers_as_soon_as_demo_json_is_there(demo: Demo) -> None:
    facts = demo.read()
    assert httpx2.get(f"{facts['url']}/readyz").status_code == 200
    assert Simulator(facts["simulator_url"]).truth("bank") is not None


def test_every_token_opens_what_its_role_may_do(demo: Demo) -> None:
    statuses = {
        f"{scope}/{principal}": demo.call(f"{scope}/{principal}", "GET", "/v1/runs").status_code
        for scope, principals in ROLES.items()
        for principal in principals
    }
    assert statuses == {
        "demo/member": 200,
        "demo/member2": 200,
        "demo/approver": 403,
        "demo/operator": 200,
        "demo/admin": 403,
        "other/member": 200,
        "other/operator": 200,
    }


def test_scope_demo_has_runs_to_look_at_and_other_is_empty(demo: Demo) -> None:
    kinds = {run["kind"] for run in demo.call("operator", "GET", "/v1/runs").json()["items"]}
    assert {"demo.echo", "demo.steps", "demo.children"} <= kinds
    assert demo.call("member2", "GET", "/v1/runs").json()["items"] == []
    assert demo.call("other/operator", "GET", "/v1/runs").json()["items"] == []


@pytest.mark.parametrize(
    ("kind", "value", "output"),
    [
        ("demo.echo", {"message": "hello"}, {"message": "hello"}),
        ("demo.steps", {"count": 4, "fail_at": 3}, {"steps": [1, 2, 3, 4], "attempts": 2}),
        ("demo.sleep", {"seconds": 0.1}, {"seconds": 0.1}),
        ("demo.fail", {"times": 1}, {"attempts": 2}),
        ("demo.text", {"words": 4, "delay_ms": 1}, {"text": "what was paid once"}),
        ("demo.children", {"count": 2}, {"outputs": [{"message": f"child {n}"} for n in (1, 2)]}),
    ],
)
def test_a_kind_does_what_it_says(demo: Demo, kind: str, value: Any, output: Any) -> None:
    assert demo.watch(demo.submit(kind, value))["output"] == output


@pytest.mark.parametrize("bank", ["keyed", "queryable", "opaque"])
def test_a_refund_is_paid_once_at_each_bank(demo: Demo, bank: str) -> None:
    order = f"{bank}-1005"
    run = demo.watch(demo.submit("demo.refund", {"order_id": order, "amount": 20, "bank": bank}))
    truth = Simulator(demo.read()["simulator_url"]).truth("bank")
    [paid] = [item for item in truth if item["request"]["order_id"] == order]
    assert paid["request"]["operation_id"] == paid["operation_id"]
    assert run["output"]["receipt"]["id"]


def test_a_second_demo_on_the_same_home_is_refused_in_one_line(demo: Demo) -> None:
    line = complaint("demo", "--home", str(demo.home), "--port", "0")
    assert line.startswith(f"another demo runs in {demo.home}; stop it, or choose another")
    assert httpx2.get(f"{demo.read()['url']}/readyz").status_code == 200


def test_a_busy_port_is_said_in_one_line_before_anything_is_made(demo: Demo, home: Path) -> None:
    port = demo.read()["url"].rpartition(":")[2]
    line = complaint("demo", "--home", str(home), "--port", port)
    assert line.startswith(f"port {port} on 127.0.0.1 is taken; choose another with --port")
    assert not home.exists()


def test_a_busy_port_of_the_simulator_is_said_before_anything_is_made(
    demo: Demo, home: Path
) -> None:
    port = demo.read()["simulator_url"].rpartition(":")[2]
    line = complaint("demo", "--home", str(home), "--port", "0", "--simulator-port", port)
    assert line == (
        f"port {port} on 127.0.0.1 is not free for the simulator; choose another with "
        "--simulator-port or EARNEST_SIMULATOR_PORT"
    )
    assert not home.exists()


def test_a_busy_port_leaves_an_empty_folder_empty(demo: Demo, home: Path) -> None:
    home.mkdir()
    complaint("demo", "--home", str(home), "--port", demo.read()["url"].rpartition(":")[2])
    assert list(home.iterdir()) == []


def test_a_busy_port_wipes_nothing(demo: Demo, home: Path) -> None:
    home.mkdir()
    (home / ".earnest-demo").touch()
    (home / "demo-tokens.json").write_text("{}")
    port = demo.read()["url"].rpartition(":")[2]
    assert "is taken" in complaint("demo", "--home", str(home), "--port", port, "--fresh")
    assert (home / "demo-tokens.json").exists()


def test_a_part_that_does_not_start_is_said_in_one_line(home: Path) -> None:
    words = ("demo", "--home", str(home), "--port", "0")
    line = complaint(*words, EARNEST_CONCURRENCY="none")
    assert re.match(r"the (worker|server) did not start: Invalid value for '--concurrency'", line)
    assert not (home / "demo.json").exists()


# ---- what is killed comes again ----------------------------------------------------------------


def test_a_killed_worker_comes_again_and_its_run_goes_on(demo: Demo) -> None:
    before = demo.read()
    run_id = demo.submit("demo.sleep", {"seconds": 3})
    demo.program.wait_for_event(run_id, "attempt.started")
    after = demo.kill("worker")
    assert after["pids"]["worker"] != before["pids"]["worker"]
    assert after | {"pids": None} == before | {"pids": None}
    run = demo.watch(run_id)
    assert (run["status"], run["attempt"]) == ("succeeded", 2)


def test_a_killed_server_comes_again_at_the_same_port(demo: Demo) -> None:
    before = demo.read()
    after = demo.kill("server")
    assert after["pids"]["server"] != before["pids"]["server"]
    assert after["url"] == before["url"]
    assert httpx2.get(f"{after['url']}/readyz").status_code == 200


def test_a_killed_simulator_comes_again_at_the_same_port(demo: Demo) -> None:
    before = demo.read()
    parent = psutil.Process(demo.process.pid)
    [simulator] = [one for one in parent.children() if "simulate" in one.cmdline()]
    simulator.kill()
    demo.wait_for_line("the simulator had ended and was started again")
    assert demo.read() == before
    assert Simulator(before["simulator_url"]).truth("bank") == []


def test_ctrl_c_ends_everything_and_the_next_start_finds_it_all_again(home: Path) -> None:
    with demo_on(home) as first:
        parts = psutil.Process(first.process.pid).children()
        assert len(parts) == 3
        tokens = first.read()["scopes"]
        run_id = first.submit("demo.echo", {"message": "remember me"})
        assert first.watch(run_id)["status"] == "succeeded"
        assert first.end() == 0
        assert psutil.wait_procs(parts, timeout=0)[1] == []
        assert not (home / "demo.json").exists()
    with demo_on(home) as second:
        assert second.read()["scopes"] == tokens
        assert second.watch(run_id)["output"] == {"message": "remember me"}


def test_what_a_killed_supervisor_leaves_ends_by_itself_and_is_found_again(home: Path) -> None:
    with demo_on(home) as first:
        port = first.read()["url"].rpartition(":")[2]
        tokens = first.read()["scopes"]
        run_id = first.submit("demo.sleep", {"seconds": 3})
        parts = psutil.Process(first.process.pid).children()
        first.process.kill()
        first.process.wait()
        with demo_on(home, "--port", port) as second:
            assert psutil.wait_procs(parts, timeout=10)[1] == []
            assert second.read()["scopes"] == tokens
            assert second.read()["url"].endswith(port)
            assert second.watch(run_id)["status"] == "succeeded"
            assert second.end() == 0


def test_without_restart_a_killed_worker_stays_dead_and_fresh_begins_anew(home: Path) -> None:
    with demo_on(home, "--no-restart") as first:
        tokens = first.read()["scopes"]
        worker = psutil.Process(first.read()["pids"]["worker"])
        worker.kill()
        psutil.wait_procs([worker], timeout=10)
        run_id = first.submit("demo.echo", {"message": "x"})
        assert "attempt.started" not in first.follow(run_id, 1.5)
        assert "serve" in psutil.Process(first.read()["pids"]["server"]).cmdline()
        assert first.end() == 0
    with demo_on(home, "--fresh") as second:
        assert second.call("operator", "GET", f"/v1/runs/{run_id}").status_code == 404
        assert second.read()["scopes"] != tokens


@pytest.mark.parametrize("words", [(), ("--fresh",)], ids=["as it is", "fresh"])
def test_a_folder_of_others_is_left_alone(home: Path, words: tuple[str, ...]) -> None:
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "mine").write_text("mine")
    line = complaint("demo", "--home", str(home), "--port", "0", *words)
    assert line == (
        f"{home} is in use and was not made by the demo, which leaves it alone; choose another "
        "folder with --home"
    )
    assert {place.name for place in home.rglob("*")} == {"postgres", "mine"}


def test_the_log_of_who_starts_the_demo_may_lie_in_its_folder(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "mine.log").write_text("mine")
    with demo_on(home, "--fresh") as started:
        assert started.end() == 0
    assert (home / "mine.log").read_text() == "mine"


# ---- the tour ----------------------------------------------------------------------------------


def test_the_story_of_make_demo_is_told_without_a_terminal_too_and_the_demo_stays(
    home: Path,
) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text("utf-8")
    words = re.findall(r"(?m)^\t@\$\(BIN\)/earnest demo (.+) \$\(ARGS\)$", makefile)[0].split()
    with demo_on(home, *words) as started:
        assert "kill -9" in started.wait_for_line("the worker is dead")
        assert "\x1b" not in started.wait_for_line("each was paid once.")
        started.wait_for_line("Ctrl-C stops it all")
        assert httpx2.get(f"{started.read()['url']}/readyz").status_code == 200
        assert started.end() == 0


def test_what_the_banks_did_in_the_tour_is_what_is_recorded(home: Path) -> None:
    """P3: also the refund whose doubt a person settled by the bank's statement."""
    with demo_on(home, "--tour", "--stay") as started:
        started.wait_for_line("each was paid once.")
        for effect in ("bank.queryable.refund", "bank.opaque.refund"):
            done = earnest(
                "sweeps", "run", effect, "--json", "--home", str(home), "--scope", "demo"
            )
            told = json.loads(done.stdout)
            assert (told["state"], told["counts"]["listed"]) == ("complete", 1)
        open_ones = started.call("operator", "GET", "/v1/differences?state=open").json()
        assert open_ones["items"] == []


def test_the_tour_kills_a_worker_and_every_refund_is_paid_once(home: Path) -> None:
    done = earnest("demo", "--home", str(home), "--port", "0", "--tour")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"kill -9 \d+: the worker is dead", done.stdout)) == 1
    paid = re.findall(r"order (\d+) was paid (\d+) time", done.stdout)
    assert paid == [("1001", "1"), ("1002", "1")]
    for told in ("operation.unknown", "operation.resolved", "run.resumed"):
        assert told in done.stdout
    assert done.stdout.rstrip().endswith("each was paid once.")
