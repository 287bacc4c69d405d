"""The demo's run kinds. Outside programs are written against their inputs and outputs."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from earnest.apps.demo.bank import BANKS, KeyedRefund, OpaqueRefund, QueryableRefund, RefundRequest
from earnest.engine.app import App
from earnest.engine.attempts.context import Context

_TICK = 0.25
_WORDS = "what was paid once is paid, and whoever asks again is told what came of it;".split()


class Echo(BaseModel):
    message: str


class Steps(BaseModel):
    count: int = Field(ge=0, le=1000)
    fail_at: int | None = Field(default=None, ge=1)


class StepsDone(BaseModel):
    steps: list[int]
    attempts: int


class Sleep(BaseModel):
    seconds: float = Field(ge=0, le=86_400)


class Slept(BaseModel):
    seconds: float


class Fail(BaseModel):
    times: int = Field(ge=0, le=19)


class FailDone(BaseModel):
    attempts: int


class Text(BaseModel):
    words: int = Field(ge=0, le=10_000)
    delay_ms: int = Field(default=0, ge=0, le=60_000)


class Written(BaseModel):
    text: str


class Refund(BaseModel):
    order_id: int | str
    amount: int | float | str
    bank: Literal["keyed", "queryable", "opaque"]
    needs_approval: bool = False


class Refunded(BaseModel):
    receipt: dict[str, object]


class Children(BaseModel):
    count: int = Field(ge=0, le=1000)


class Gathered(BaseModel):
    outputs: list[Echo]


def make_demo(simulator_url: str) -> App:
    """The demo's kinds, with their banks at `simulator_url`."""
    app = App("demo")
    for effect in (KeyedRefund, QueryableRefund, OpaqueRefund):
        app.effect(effect(simulator_url))
    echo = app.run("demo.echo", pure=True)(_echo)
    app.run("demo.steps", retry_first="0.5s", pure=True)(_steps)
    app.run("demo.sleep", pure=True)(_sleep)
    app.run("demo.fail", max_attempts=20, retry_first="0.5s", retry_longest="5s", pure=True)(_fail)
    app.run("demo.text", pure=True)(_text)
    app.run("demo.refund", max_attempts=5, retry_first="0.5s")(_refund)

    @app.run("demo.children", pure=True)
    async def children(ctx: Context, asked: Children) -> Gathered:
        """Child runs of `demo.echo`, their outputs gathered in order."""
        submitted = [
            await ctx.submit(echo, Echo(message=f"child {number}"), key=str(number))
            for number in range(1, asked.count + 1)
        ]
        return Gathered(outputs=await ctx.wait(*submitted))

    return app


async def _echo(ctx: Context, asked: Echo) -> Echo:
    """Returns its message."""
    return asked


async def _steps(ctx: Context, asked: Steps) -> StepsDone:
    """Remembered steps; fails once at `fail_at` and goes on after what was done."""
    done = []
    for number in range(1, asked.count + 1):
        if number == asked.fail_at and ctx.attempt == 1:
            raise RuntimeError(f"step {number} fails once, as asked")
        done.append(await ctx.step("count", _same, number))
        ctx.log("counted", number=number)
        await ctx.progress(number, asked.count)
    return StepsDone(steps=done, attempts=ctx.attempt)


async def _same(number: int) -> int:
    return number


async def _sleep(ctx: Context, asked: Sleep) -> Slept:
    """Works cooperatively for that long, with progress; stops when it is cancelled."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    while (passed := loop.time() - start) < asked.seconds:
        await ctx.progress(round(passed, 2), asked.seconds)
        await asyncio.sleep(min(_TICK, asked.seconds - passed))
    return Slept(seconds=asked.seconds)


async def _fail(ctx: Context, asked: Fail) -> FailDone:
    """Fails that many attempts, then succeeds."""
    if ctx.attempt <= asked.times:
        raise RuntimeError(f"attempt {ctx.attempt} of {asked.times} that fail, as asked")
    return FailDone(attempts=ctx.attempt)


async def _text(ctx: Context, asked: Text) -> Written:
    """Writes so many words, one by one, with a pause before each."""
    written = []
    for number in range(asked.words):
        await asyncio.sleep(asked.delay_ms / 1000)
        word = _WORDS[number % len(_WORDS)]
        written.append(f" {word}" if number else word)
        await ctx.text(written[-1])
    return Written(text="".join(written))


async def _refund(ctx: Context, asked: Refund) -> Refunded:
    """One refund at a bank of the simulator, at most once; approved by a person where that is
    asked for."""
    request = RefundRequest(order_id=asked.order_id, amount=asked.amount)
    terms = ctx.approve(role="approver", expires_in="24h") if asked.needs_approval else None
    receipt = await ctx.operation("refund", BANKS[asked.bank], request, approval=terms)
    return Refunded(receipt=receipt.model_dump())
