"""The fixtures `approve` and `reject`: a person in a test (P11)."""

from __future__ import annotations

import pytest

from earnest import App, Context
from earnest.domain.errors import Forbidden
from earnest.testing.verbs import Decide, Drain

app = App("deciding")


@app.run("ask")
async def ask(ctx: Context, proposal: int) -> str:
    return (await ctx.approve("go", proposal, role="operator", expires_in="1h")).decided_by


@app.run("ask.others", approver_may_be_proposer=False)
async def ask_others(ctx: Context, proposal: int) -> str:
    return (await ctx.approve("go", proposal)).decided_by


@app.run("ask.nothing")
async def ask_nothing(ctx: Context, proposal: int) -> int:
    return proposal


@pytest.fixture
def earnest_app() -> App:
    return app


async def test_a_test_decides_as_whoever_has_the_role(drain: Drain, approve: Decide) -> None:
    run_id = await app.submit(ask, 17)
    await drain()
    approval = await approve(run_id, by="dan", note="fine")
    assert (approval.proposal, approval.status, approval.note) == (17, "approved", "fine")
    assert (await drain(to_the_end=True)).ended == {"succeeded": 1}


async def test_drain_leaves_a_run_waiting_and_says_for_whom(drain: Drain, reject: Decide) -> None:
    run_id = await app.submit(ask, 17)
    (left,) = (await drain()).left
    assert (left.id, left.state) == (run_id, "waiting")
    assert "role operator" in left.why
    await reject(run_id, name="go")
    assert (await drain(to_the_end=True)).ended == {"failed": 1}


async def test_what_is_not_waited_for_cannot_be_decided(drain: Drain, approve: Decide) -> None:
    waiting, done = await app.submit(ask, 1), await app.submit(ask_nothing, 2)
    await drain()
    with pytest.raises(AssertionError, match="it has asked for none"):
        await approve(done)
    with pytest.raises(AssertionError, match="'go' is pending"):
        await approve(waiting, name="other")
    await approve(waiting)
    with pytest.raises(AssertionError, match="'go' is approved"):
        await approve(waiting)


async def test_a_proposer_is_refused_in_a_test_as_well(drain: Drain, approve: Decide) -> None:
    """The app itself asked for the run."""
    run_id = await app.submit(ask_others, 1)
    await drain()
    with pytest.raises(Forbidden):
        await approve(run_id, by="app")
