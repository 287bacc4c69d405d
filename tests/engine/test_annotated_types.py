"""Constraints that stand beside a type, as in `Annotated[int, Field(gt=0)]`, hold like the type."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, PlainSerializer

from earnest import App, Context
from earnest.domain.errors import InvalidRequest
from tests.engine.conftest import MakeBench

Euros = Annotated[int, PlainSerializer(lambda cents: f"{cents / 100:.2f} EUR", return_type=str)]


async def test_an_input_outside_of_its_constraint_is_refused(make_bench: MakeBench) -> None:
    app = App("constrained")

    @app.run("pay")
    async def pay(ctx: Context, amount: Annotated[int, Field(gt=0)]) -> int:
        return amount

    bench = make_bench(app)
    with pytest.raises(InvalidRequest, match="Input should be greater than 0"):
        await bench.submit("pay", 0)
    assert (await bench.done("pay", 1)).output == 1


async def test_a_result_is_written_as_its_annotation_says(make_bench: MakeBench) -> None:
    app = App("constrained")

    @app.run("quote")
    async def quote(ctx: Context, value: None) -> Euros:
        return 2000

    bench = make_bench(app)
    assert (await bench.done("quote")).output == "20.00 EUR"
