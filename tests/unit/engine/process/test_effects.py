"""Effects: the types that a class declares, and what it tells of its receipts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ValidationError

from earnest.domain.operation import Recovery
from earnest.engine.process.effects import Call, Effect

RequestT = TypeVar("RequestT")


class Request(BaseModel):
    amount: int


class Receipt(BaseModel):
    id: str


class Bank(Effect[Request, Receipt]):
    kind, recovery, window, timeout = "unit.bank", "resend", "1h", "5s"

    async def submit(self, call: Call, request: Request) -> Receipt:
        return Receipt(id=call.id)


class PatientBank(Bank):
    kind, window, provider = "unit.patient", "7d", "another bank"


class Through(Effect[RequestT, Receipt], Generic[RequestT]):
    """Leaves the request's type to those that derive from it."""

    async def submit(self, call: Call, request: RequestT) -> Receipt:
        return Receipt(id=call.id)


class ThroughBank(Through[Request], Effect[Request, Receipt]):
    kind = "unit.through"


class Anything(Effect):
    kind = "unit.anything"

    async def submit(self, call: Call, request: Any) -> Any:
        return request


@pytest.mark.parametrize("effect", [Bank, PatientBank, ThroughBank])
def test_requests_and_receipts_are_of_the_declared_types(effect: type[Effect[Any, Any]]) -> None:
    made = effect()
    assert made.request_type.validate_python({"amount": "7"}) == Request(amount=7)
    assert made.receipt_type.validate_python({"id": "r"}) == Receipt(id="r")
    with pytest.raises(ValidationError):
        made.request_type.validate_python({})


def test_an_effect_without_types_takes_anything() -> None:
    assert Anything().request_type.validate_python({"a": [1]}) == {"a": [1]}


def test_terms_are_inherited_and_changed_one_by_one() -> None:
    bank, patient = Bank().terms(), PatientBank().terms()
    assert (bank.recovery, patient.recovery) == (Recovery.RESEND, Recovery.RESEND)
    assert (bank.window, patient.window) == (timedelta(hours=1), timedelta(days=7))
    assert (bank.timeout, patient.timeout) == (timedelta(seconds=5), timedelta(seconds=5))
    assert (bank.provider, patient.provider) == ("unit", "another bank")


@dataclass
class Slip:
    id: int


@pytest.mark.parametrize(
    ("receipt", "reference"),
    [
        (Receipt(id="r-1"), "r-1"),
        (Slip(7), "7"),
        ({"id": "r-2"}, "r-2"),
        ({"id": None}, None),
        ({"number": 1}, None),
        ("r-3", None),
    ],
    ids=repr,
)
def test_a_receipts_id_is_the_providers_name_for_it(receipt: Any, reference: str | None) -> None:
    assert Anything().external_ref(receipt) == reference
