"""What the three banks promise when nothing goes wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.testing.bank import KINDS, Bank, new_refund

MALFORMED = [
    new_refund(operation_id=None),
    new_refund(operation_id=""),
    new_refund(operation_id=17),
    new_refund(order_id=None),
    new_refund(order_id=""),
    new_refund(order_id=True),
    new_refund(order_id=1.5),
    new_refund(amount=None),
    new_refund(amount=True),
    new_refund(amount=0),
    new_refund(amount=-1),
    new_refund(amount="0.00"),
    new_refund(amount="-20"),
    new_refund(amount="twenty"),
    new_refund(amount=" 20"),
    new_refund(amount="1e3"),
    new_refund(amount="NaN"),
    new_refund(amount=["20"]),
    [new_refund()],
    "refund",
    None,
]
UNREADABLE = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"operation_id": "a", "order_id": 1, "amount": NaN}',
    b'{"operation_id": "a", "order_id": 1, "amount": 1e999}',
    b'{"operation_id": "\\ud800", "order_id": 1, "amount": 1}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refund_is_made_and_entered_with_the_body_that_asked_for_it(
    bank: Bank, kind: str
) -> None:
    refund = new_refund(order_id=1001, amount=20.5, note="kept")
    answer = bank.ask(kind, refund, key="any")
    (deed,) = bank.deeds(refund)
    assert answer.status_code == 200
    assert answer.json()["id"]
    assert deed.pop("at").endswith("+00:00")
    assert deed == {
        "provider": "bank",
        "action": "refund",
        "operation_id": refund["operation_id"],
        "request": refund,
    }


@pytest.mark.parametrize("kind", ["keyed", "queryable"])
def test_a_receipt_names_what_was_refunded(bank: Bank, kind: str) -> None:
    refund = new_refund()
    receipt = bank.ask(kind, refund).json()
    assert receipt == {"id": receipt["id"], **refund}


def test_the_opaque_bank_tells_only_an_id(bank: Bank) -> None:
    assert set(bank.ask("opaque", new_refund()).json()) == {"id"}


def test_the_keyed_bank_does_a_repeated_key_once(bank: Bank) -> None:
    refund = new_refund()
    first = bank.ask("keyed", refund, key=refund["operation_id"])
    again = bank.ask("keyed", refund, key=refund["operation_id"])
    assert again.json() == first.json()
    assert len(bank.deeds(refund)) == 1


def test_the_keyed_bank_knows_a_body_again_whatever_the_order_of_its_fields(bank: Bank) -> None:
    refund = new_refund()
    first = bank.ask("keyed", refund, key=refund["operation_id"])
    again = bank.ask("keyed", dict(reversed(refund.items())), key=refund["operation_id"])
    assert again.json() == first.json()


def test_the_keyed_bank_refuses_a_key_that_was_used_for_another_body(bank: Bank) -> None:
    refund = new_refund()
    bank.ask("keyed", refund, key=refund["operation_id"])
    answer = bank.ask("keyed", refund | {"amount": "21.00"}, key=refund["operation_id"])
    assert answer.status_code == 422
    assert [deed["request"]["amount"] for deed in bank.deeds(refund)] == ["20.00"]


def test_the_keyed_bank_recognises_nothing_without_a_key(bank: Bank) -> None:
    refund = new_refund()
    ids = {bank.ask("keyed", refund).json()["id"] for _ in range(2)}
    assert len(ids) == len(bank.deeds(refund)) == 2


def test_the_queryable_bank_does_a_repeated_operation_once(bank: Bank) -> None:
    refund = new_refund()
    first = bank.ask("queryable", refund)
    again = bank.ask("queryable", refund | {"amount": "99"})
    assert again.json() == first.json()
    assert len(bank.deeds(refund)) == 1


def test_the_queryable_bank_answers_a_look_up_with_the_receipt_or_404(bank: Bank) -> None:
    refund = new_refund()
    assert bank.look_up(refund["operation_id"]).status_code == 404
    receipt = bank.ask("queryable", refund).json()
    assert bank.look_up(refund["operation_id"]).json() == receipt


def test_the_opaque_bank_makes_a_new_refund_for_each_call(bank: Bank) -> None:
    refund = new_refund()
    ids = {bank.ask("opaque", refund, key="ignored").json()["id"] for _ in range(3)}
    assert len(ids) == len(bank.deeds(refund)) == 3


@pytest.mark.parametrize("kind", ["keyed", "queryable"])
def test_one_operation_asked_for_by_many_at_once_is_done_once(bank: Bank, kind: str) -> None:
    refund = new_refund()
    with ThreadPoolExecutor(8) as callers:
        asked = [
            callers.submit(bank.ask, kind, refund, key=refund["operation_id"]) for _ in range(24)
        ]
    assert len({call.result().json()["id"] for call in asked}) == 1
    assert len(bank.deeds(refund)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_malformed_refund_is_answered_400_and_not_done(bank: Bank, kind: str) -> None:
    before = bank.simulator.truth()
    answers = [bank.ask(kind, body) for body in MALFORMED]
    answers += [bank.ask_raw(kind, body) for body in UNREADABLE]
    assert {answer.status_code for answer in answers} == {400}
    assert all(_is_one_line(answer.json()["error"]) for answer in answers)
    assert bank.simulator.truth() == before


@pytest.mark.parametrize("amount", [1, 0.01, "1", "0.01", "20.000"], ids=repr)
def test_an_amount_may_be_a_number_or_a_decimal_string(
    bank: Bank, amount: float | int | str
) -> None:
    refund = new_refund(amount=amount)
    assert bank.ask("keyed", refund).json()["amount"] == amount


def _is_one_line(text: Any) -> bool:
    return isinstance(text, str) and len(text.splitlines()) == 1
