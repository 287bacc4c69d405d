"""Each fault does what it says, as often as it says, to the calls it was meant for."""

from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from earnest.testing.simulator import Simulator
from tests.testing.bank import KINDS, Bank, new_refund


def put(bank: Bank, mode: str, **details: Any) -> None:
    bank.simulator.put_fault("bank", mode, **details)


# ---- modes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_accept_then_drop_does_it_and_closes_the_connection_without_a_byte(
    bank: Bank, kind: str
) -> None:
    refund = new_refund()
    put(bank, "accept_then_drop")
    with closing(bank.send(kind, refund)) as line:
        assert _everything_answered_on(line) == b""
    assert len(bank.deeds(refund)) == 1


def test_a_drop_leaves_the_connections_of_others_alone(bank: Bank) -> None:
    dropped, other = new_refund(), new_refund()
    put(bank, "slow", delay_ms=300, match=other["operation_id"])
    with closing(bank.send("opaque", other)) as others_line:
        bank.wait_until_no_rule_is_left()
        put(bank, "accept_then_drop")
        with closing(bank.send("opaque", dropped)) as line:
            assert _everything_answered_on(line) == b""
        assert others_line.recv(4096).startswith(b"HTTP/1.1 200")


def test_slow_does_it_after_the_delay_and_answers(bank: Bank) -> None:
    refund, asked_at = new_refund(), datetime.now(UTC)
    put(bank, "slow", delay_ms=150)
    assert bank.ask("opaque", refund).status_code == 200
    assert _done_at(bank, refund) >= asked_at + timedelta(milliseconds=150)


def test_slow_does_it_even_if_the_caller_is_gone(bank: Bank) -> None:
    refund, asked_at = new_refund(), datetime.now(UTC)
    done_before = len(bank.simulator.truth("bank"))
    put(bank, "slow", delay_ms=400)
    with closing(bank.send("queryable", refund)):
        bank.wait_until_no_rule_is_left()
    assert bank.look_up(refund["operation_id"]).status_code == 404
    bank.simulator.wait_for_truth(done_before + 1, "bank")
    assert _done_at(bank, refund) >= asked_at + timedelta(milliseconds=400)
    assert bank.look_up(refund["operation_id"]).status_code == 200


def test_slow_does_it_even_if_the_caller_resets_the_connection(bank: Bank) -> None:
    refund, done_before = new_refund(), len(bank.simulator.truth("bank"))
    put(bank, "slow", delay_ms=300)
    with closing(bank.send("opaque", refund)) as line:
        bank.wait_until_no_rule_is_left()
        _reset_when_closed(line)
    bank.simulator.wait_for_truth(done_before + 1, "bank")
    assert len(bank.deeds(refund)) == 1


@pytest.mark.parametrize("kind", ["keyed", "queryable"])
def test_a_repetition_that_overtakes_the_slow_call_is_done_once(bank: Bank, kind: str) -> None:
    refund = new_refund()
    put(bank, "slow", delay_ms=300)
    with ThreadPoolExecutor(1) as caller:
        slow = caller.submit(bank.ask, kind, refund, key=refund["operation_id"])
        bank.wait_until_no_rule_is_left()
        fast = bank.ask(kind, refund, key=refund["operation_id"])
        assert not slow.done()
        assert slow.result().json() == fast.json()
    assert len(bank.deeds(refund)) == 1


def test_error_before_answers_500_without_doing_it(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "error_before")
    assert bank.ask("opaque", refund).status_code == 500
    assert bank.deeds(refund) == []


def test_error_after_does_it_and_answers_500(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "error_after")
    assert bank.ask("opaque", refund).status_code == 500
    assert len(bank.deeds(refund)) == 1


def test_refuse_answers_422_with_json_without_doing_it(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "refuse")
    answer = bank.ask("opaque", refund)
    assert answer.status_code == 422
    assert answer.json()["error"]
    assert bank.deeds(refund) == []


def test_garbage_does_it_and_answers_200_with_what_is_not_json(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "garbage")
    answer = bank.ask("opaque", refund)
    assert answer.status_code == 200
    with pytest.raises(ValueError, match="Expecting value"):
        answer.json()
    assert len(bank.deeds(refund)) == 1


def test_duplicate_callback_is_a_normal_answer_at_a_bank_that_calls_nobody(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "duplicate_callback")
    assert bank.ask("opaque", refund).json()["id"]
    assert len(bank.deeds(refund)) == 1
    assert bank.simulator.faults() == []


@pytest.mark.parametrize("mode", ["error_before", "refuse", "duplicate_callback"])
def test_a_delay_comes_before_the_answer_of_a_mode_that_does_not_act_first(
    bank: Bank, mode: str
) -> None:
    asked_at = datetime.now(UTC)
    put(bank, mode, delay_ms=150)
    bank.ask("opaque", new_refund())
    assert datetime.now(UTC) >= asked_at + timedelta(milliseconds=150)


@pytest.mark.parametrize("mode", ["accept_then_drop", "error_after", "garbage"])
def test_a_delay_comes_between_the_effect_and_the_spoilt_answer(bank: Bank, mode: str) -> None:
    refund, done_before = new_refund(), len(bank.simulator.truth("bank"))
    put(bank, mode, delay_ms=3_600_000)
    with closing(bank.send("queryable", refund)) as line:
        bank.simulator.wait_for_truth(done_before + 1, "bank")
        assert bank.look_up(refund["operation_id"]).status_code == 200
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(1)


# ---- which calls, and how many -----------------------------------------------------------------


def test_a_rule_is_used_up_after_count_calls(bank: Bank) -> None:
    put(bank, "error_before", count=2)
    statuses = [bank.ask("opaque", new_refund()).status_code for _ in range(4)]
    assert statuses == [500, 500, 200, 200]


def test_the_rules_shown_tell_how_many_calls_they_are_good_for(bank: Bank) -> None:
    put(bank, "refuse", count=3, delay_ms=5, match="order-17")
    bank.ask("opaque", new_refund())
    assert bank.simulator.faults() == [
        {"provider": "bank", "mode": "refuse", "count": 2, "delay_ms": 5, "match": "order-17"}
    ]


def test_a_look_up_neither_suffers_nor_uses_a_rule(bank: Bank) -> None:
    refund = new_refund()
    bank.ask("queryable", refund)
    put(bank, "error_before")
    assert bank.look_up(refund["operation_id"]).status_code == 200
    assert bank.look_up("unknown").status_code == 404
    assert bank.ask("queryable", new_refund()).status_code == 500


def test_a_malformed_body_does_not_use_a_rule(bank: Bank) -> None:
    put(bank, "error_before")
    assert bank.ask("opaque", {"amount": 1}).status_code == 400
    assert bank.ask("opaque", new_refund()).status_code == 500


def test_the_answer_to_a_repetition_can_be_spoilt_too(bank: Bank) -> None:
    refund = new_refund()
    put(bank, "error_after", count=2)
    statuses = [bank.ask("queryable", refund).status_code for _ in range(3)]
    assert statuses == [500, 500, 200]
    assert len(bank.deeds(refund)) == 1


def test_calls_that_come_at_once_use_a_rule_exactly_count_times(bank: Bank) -> None:
    put(bank, "error_before", count=5, delay_ms=20)
    refunds = [new_refund() for _ in range(20)]
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda refund: bank.ask("opaque", refund), refunds))
    assert sorted(answer.status_code for answer in answers) == [200] * 15 + [500] * 5


def test_a_match_looks_into_the_body(bank: Bank) -> None:
    put(bank, "error_before", count=9, match="order-99")
    assert bank.ask("opaque", new_refund(order_id="order-17")).status_code == 200
    assert bank.ask("opaque", new_refund(order_id="order-99")).status_code == 500


def test_a_match_looks_into_the_path(bank: Bank) -> None:
    put(bank, "error_before", count=9, match="/keyed/")
    assert bank.ask("opaque", new_refund()).status_code == 200
    assert bank.ask("keyed", new_refund()).status_code == 500


def test_a_rule_stands_for_one_provider_and_match_and_is_replaced(bank: Bank) -> None:
    put(bank, "error_before", count=9)
    put(bank, "refuse", count=9, match="order-17")
    put(bank, "error_after", count=9)
    modes = {rule["match"]: rule["mode"] for rule in bank.simulator.faults()}
    assert modes == {None: "error_after", "order-17": "refuse"}


def test_the_longest_match_decides_and_only_its_rule_is_used(bank: Bank) -> None:
    put(bank, "error_before", match="order")
    put(bank, "refuse", match="order-17")
    put(bank, "error_after")
    statuses = [bank.ask("opaque", new_refund()).status_code for _ in range(4)]
    assert statuses == [422, 500, 500, 200]


def test_a_rule_for_another_provider_does_not_touch_the_bank(bank: Bank) -> None:
    bank.simulator.put_fault("gallery", "error_before")
    assert bank.ask("opaque", new_refund()).status_code == 200


def test_mode_none_removes_the_rule_of_that_match_only(bank: Bank) -> None:
    put(bank, "refuse", match="order-17")
    put(bank, "refuse")
    put(bank, "none")
    assert [rule["match"] for rule in bank.simulator.faults()] == ["order-17"]


def test_clearing_takes_all_rules_away(bank: Bank) -> None:
    put(bank, "refuse", count=9)
    put(bank, "refuse", count=9, match="order-17")
    bank.simulator.clear_faults()
    assert bank.simulator.faults() == []
    assert bank.ask("opaque", new_refund()).status_code == 200


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"provider": "bnk"}, "unknown provider 'bnk': use one of bank, llm"),
        ({"provider": None}, "unknown provider None"),
        ({"mode": "explode"}, "unknown mode 'explode': use one of none, accept_then_drop"),
        ({"mode": ["slow"]}, "unknown mode"),
        ({"count": 0}, "count must be a whole number from 1"),
        ({"count": True}, "count must be a whole number"),
        ({"count": 1.5}, "count must be a whole number"),
        ({"delay_ms": -1}, "delay_ms must be a whole number from 0"),
        ({"delay_ms": "10"}, "delay_ms must be a whole number"),
        ({"match": ""}, "match must be a non-empty string"),
        ({"match": 17}, "match must be a non-empty string"),
        ({"times": 2}, "unknown field 'times': use provider, mode, count"),
    ],
)
def test_a_rule_that_makes_no_sense_is_answered_400_and_not_set(
    simulator: Simulator, fields: dict[str, Any], complaint: str
) -> None:
    rule = {"provider": "bank", "mode": "slow"} | fields
    answer = httpx2.put(simulator.url + "/faults", json=rule, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(complaint)
    assert simulator.faults() == []


def _done_at(bank: Bank, refund: dict[str, Any]) -> datetime:
    (deed,) = bank.deeds(refund)
    return datetime.fromisoformat(deed["at"])


def _everything_answered_on(line: socket.socket) -> bytes:
    """All bytes until the other side closes; a reset is an end like any other."""
    answered = b""
    try:
        while chunk := line.recv(4096):
            answered += chunk
    except ConnectionResetError:
        pass
    return answered


def _reset_when_closed(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
