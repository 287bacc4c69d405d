"""The simulator as a whole: its truth, its process, its application."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.responses import Response

from earnest.testing.simulator import Simulator, build_app, running_simulator
from earnest.testing.simulator.effects import Effects
from earnest.testing.simulator.faults import EffectCall, FaultRules, Mode, Rule
from earnest.testing.simulator.truth import TruthLog
from tests.testing.bank import Bank, new_refund

STARTS_ONE_AND_HANGS = """
import signal
from earnest.testing.simulator import running_simulator
with running_simulator() as simulator:
    print(simulator.pid, flush=True)
    signal.pause()
"""


# ---- truth -------------------------------------------------------------------------------------


def test_truth_is_in_the_order_of_doing_not_of_asking(bank: Bank) -> None:
    late, early = new_refund(), new_refund()
    done_before = len(bank.simulator.truth("bank"))
    bank.simulator.put_fault("bank", "slow", delay_ms=300)
    with closing(bank.send("opaque", late)):
        bank.wait_until_no_rule_is_left()
        bank.ask("opaque", early)
        new = bank.simulator.wait_for_truth(done_before + 2, "bank")[done_before:]
    assert [deed["request"] for deed in new] == [early, late]
    assert new[0]["at"] < new[1]["at"]


def test_truth_without_a_provider_tells_everything(bank: Bank) -> None:
    bank.ask("opaque", new_refund())
    assert bank.simulator.truth() == bank.simulator.truth("bank") != []


def test_truth_of_a_provider_that_did_nothing_is_empty(simulator: Simulator) -> None:
    assert simulator.truth("gallery") == []


def test_waiting_for_truth_that_does_not_come_ends_in_time(simulator: Simulator) -> None:
    with pytest.raises(TimeoutError, match="0 of 1 effects"):
        simulator.wait_for_truth(1, "gallery", timeout=0.05)


@pytest.mark.parametrize("query", ["provider=bnk", "provider=", "at_least=x", "wait_ms=-1"])
def test_a_question_that_makes_no_sense_is_answered_400(simulator: Simulator, query: str) -> None:
    answer = httpx2.get(f"{simulator.url}/truth?{query}", trust_env=False)
    assert answer.status_code == 400
    assert len(answer.json()["error"].splitlines()) == 1


def test_a_wrong_provider_raises_in_the_test_that_named_it(simulator: Simulator) -> None:
    with pytest.raises(ValueError, match="unknown provider 'bnk'"):
        simulator.truth("bnk")


def test_a_request_that_breaks_off_in_the_middle_does_nothing(bank: Bank) -> None:
    before = bank.simulator.truth()
    address = urlsplit(bank.simulator.url)
    with socket.create_connection((address.hostname, address.port)) as line:
        line.sendall(
            b"POST /bank/opaque/refunds HTTP/1.1\r\nHost: b\r\nContent-Length: 99\r\n\r\n{"
        )
    assert bank.simulator.truth() == before


# ---- process -----------------------------------------------------------------------------------


def test_each_process_has_its_own_memory_and_address(bank: Bank) -> None:
    bank.ask("opaque", new_refund())
    with running_simulator() as another:
        assert another.truth() == []
        assert another.url != bank.simulator.url


def test_sigterm_stops_it_soon_even_with_a_caller_still_waiting() -> None:
    with running_simulator() as simulator, Bank(simulator) as bank:
        simulator.put_fault("bank", "slow", delay_ms=3_600_000)
        with closing(bank.send("opaque", new_refund())):
            bank.wait_until_no_rule_is_left()
            assert _ends(simulator, lambda pid: os.kill(pid, signal.SIGTERM))


def test_it_is_stopped_at_the_end_even_if_the_test_fails() -> None:
    with pytest.raises(ZeroDivisionError), running_simulator() as simulator:
        raise ZeroDivisionError
    address = urlsplit(simulator.url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port))


def test_it_does_not_outlive_a_starter_that_was_killed() -> None:
    command = [sys.executable, "-c", STARTS_ONE_AND_HANGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        simulator = Simulator("", pid=int(starter.stdout.readline()))
        assert _ends(simulator, lambda _: starter.kill())


def test_a_busy_port_is_one_line_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        said = _start_in_vain("--port", str(holder.getsockname()[1]))
    assert "is in use: choose another port" in said


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--port", "70000"), "port 70000 does not exist"),
        (("--host", "203.0.113.1"), "cannot listen on 203.0.113.1"),
    ],
)
def test_an_address_that_cannot_be_had_is_one_line(
    options: tuple[str, ...], complaint: str
) -> None:
    assert _start_in_vain(*options).startswith(complaint)


# ---- application -------------------------------------------------------------------------------


async def test_an_effect_once_begun_is_done_even_if_the_server_gives_the_request_up() -> None:
    effects, done = Effects(TruthLog(), FaultRules()), asyncio.Event()
    effects.faults.put(Rule("bank", Mode.SLOW, delay_ms=50))

    def act() -> Response:
        done.set()
        return Response()

    call = asyncio.create_task(effects.perform(EffectCall("bank", "/refunds", ""), act))
    await asyncio.sleep(0)  # one turn of the loop: the call waits out its delay
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert not done.is_set()
    await asyncio.wait_for(done.wait(), 10)


async def test_a_drop_without_a_connection_to_close_is_an_error_after_the_effect() -> None:
    app = build_app()
    async with _in_process(app) as client:
        await client.put("/faults", json={"provider": "bank", "mode": "accept_then_drop"})
        with pytest.raises(ConnectionAbortedError):
            await client.post("/bank/opaque/refunds", json=new_refund())
    assert len(app.state.effects.truth.deeds("bank")) == 1


def _ends(simulator: Simulator, cause: Callable[[int], None]) -> bool:
    """Whether the simulator's process ends within a few seconds of the cause."""
    assert simulator.pid is not None
    process = os.pidfd_open(simulator.pid)
    try:
        cause(simulator.pid)
        ended, _, _ = select.select([process], [], [], 8)
    finally:
        os.close(process)
    return bool(ended)


def _in_process(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app)
    return httpx2.AsyncClient(transport=transport, base_url="http://bank")


def _start_in_vain(*options: str) -> str:
    command = [sys.executable, "-m", "earnest.testing.simulator", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


def test_a_simulator_that_forgets_is_as_new_and_earlier_calls_end_in_the_old_one() -> None:
    with running_simulator() as simulator, Bank(simulator) as bank:
        known = new_refund()
        first = bank.ask("queryable", known).json()
        bank.simulator.put_fault("bank", "slow", delay_ms=200)
        with bank.send("opaque", new_refund()) as late:
            bank.wait_until_no_rule_is_left()
            simulator.put_fault("bank", "refuse", match="never")
            simulator.forget()
            assert (simulator.truth(), simulator.faults()) == ([], [])
            assert bank.look_up(known["operation_id"]).status_code == 404
            assert b"200 OK" in late.recv(4096)
        assert bank.ask("queryable", known).json() != first
        (deed,) = simulator.truth()
        assert deed["operation_id"] == known["operation_id"]
