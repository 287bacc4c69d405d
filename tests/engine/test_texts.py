"""What a handler writes for who watches: gathered, in order, under its fence, and bounded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from earnest import App, Context, PlainContext
from earnest.domain import text
from earnest.domain.errors import FencedOut, InvalidRequest, QuotaExceeded, TextTooLong
from earnest.domain.text import (
    MAX_BYTES_OF_PRINCIPAL,
    MAX_BYTES_OF_RUN,
    MAX_DELTA_BYTES,
    MAX_DELTAS_OF_RUN,
    TextDelta,
    TextHead,
)
from earnest.engine.attempts import texting
from earnest.engine.attempts.settling import Wish
from earnest.engine.attempts.texting import Texts, TextWriter, prune_texts
from earnest.engine.runs.leasing import Leases, boot_seconds
from earnest.store import texts
from earnest.store.texts import Piece
from earnest.store.visible import Sight
from earnest.testing.clock import ManualClock
from tests.engine.bench import MEMBER, SCOPE, Bench
from tests.engine.conftest import MakeBench
from tests.engine.test_lost_replies import AtPoints, Cut

Handler = Callable[[Context], object]


def app_of(handler: Callable[[Context], object], **terms: object) -> App:
    app = App("writes")

    @app.run("write", retry_first="0s", **terms)  # type: ignore[arg-type]
    async def write(ctx: Context, value: None) -> object:
        return await handler(ctx)  # type: ignore[misc]

    return app


async def read(bench: Bench, run_id: uuid.UUID) -> list[TextDelta]:
    sight = Sight(SCOPE, run_id, None)
    return await texts.visible(bench.engine.database, sight, 0, 10_000, 2**30)


async def head_of(bench: Bench, run_id: uuid.UUID) -> TextHead:
    return await texts.find_head(bench.engine.database, SCOPE, run_id)


@asynccontextmanager
async def holding_quota(bench: Bench) -> AsyncIterator[None]:
    """Meanwhile no text of the member can be stored."""
    await bench.execute("INSERT INTO text_quota VALUES ($1, $2, 0)", SCOPE, MEMBER)
    async with bench.engine.database.connection() as tx, tx.transaction():
        await tx.execute("SELECT FROM text_quota FOR UPDATE")
        yield


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first delta nothing is stored because time passes."""
    monkeypatch.setattr(texting, "GATHER", 3600.0)


# ---- what is stored, and when ------------------------------------------------------------------


async def test_text_is_stored_in_order_and_small_pieces_together(make_bench: MakeBench) -> None:
    words = [f"word {number} " for number in range(200)]

    async def write(ctx: Context) -> None:
        for word in words:
            await ctx.text(word)
            await asyncio.sleep(0)

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    found = await read(bench, run.run_id)
    assert "".join(delta.content for delta in found) == "".join(words)
    assert [delta.sequence for delta in found] == list(range(1, len(found) + 1))
    assert {(delta.attempt, delta.resets) for delta in found} == {(1, False)}
    assert len(found) < 20
    head = await head_of(bench, run.run_id)
    assert (head.last_sequence, head.bytes) == (len(found), len("".join(words)))


async def test_the_first_word_is_stored_at_once_and_the_next_after_a_moment(
    make_bench: MakeBench,
) -> None:
    goes_on = asyncio.Event()

    async def write(ctx: Context) -> None:
        await ctx.text("once ")
        await goes_on.wait()
        for word in ("upon ", "a ", "time"):
            await ctx.text(word)
        await asyncio.sleep(3600)

    bench = make_bench(app_of(write))
    async with bench.at_work():
        run_id = await bench.submit("write")
        await bench.wait_until_true("SELECT count(*) = 1 FROM text_delta")
        goes_on.set()
        await bench.wait_until_true("SELECT count(*) = 2 FROM text_delta")
        await bench.cancel(run_id)
    assert [delta.content for delta in await read(bench, run_id)] == ["once ", "upon a time"]


Verb = Callable[[Context], object]

VERBS: dict[str, Verb] = {
    "step": lambda ctx: ctx.step("count", int),
    "emit": lambda ctx: ctx.emit("it.happened", {}),
    "progress": lambda ctx: ctx.progress(1),
}


@pytest.mark.usefixtures("never_by_itself")
@pytest.mark.parametrize("verb", VERBS)
async def test_text_is_stored_before_what_comes_after_it(make_bench: MakeBench, verb: str) -> None:
    seen: list[object] = []

    async def write(ctx: Context) -> None:
        await ctx.text("first")
        await VERBS[verb](ctx)  # type: ignore[misc]
        await ctx.text("second")
        await VERBS[verb](ctx)  # type: ignore[misc]
        seen.append([delta.content for delta in await read(bench, ctx.claimed.run_id)])

    bench = make_bench(app_of(write))
    await bench.done("write")
    assert seen == [["first", "second"]]


@pytest.mark.usefixtures("never_by_itself")
@pytest.mark.parametrize("ending", ["succeeded", "failed", "waiting", "cancelled"])
async def test_text_is_stored_before_the_attempt_ends(make_bench: MakeBench, ending: str) -> None:
    async def write(ctx: Context) -> None:
        await ctx.text("one ")
        await ctx.flush_text()
        await ctx.text("two")
        if ending == "failed":
            raise RuntimeError("the model hung up")
        if ending == "waiting":
            await ctx.wait_signal("go")
        if ending == "cancelled":
            await bench.cancel(ctx.claimed.run_id)
            await ctx.progress(1)
            await asyncio.sleep(3600)

    bench = make_bench(app_of(write, max_attempts=1))
    run = await bench.done("write")
    assert run.status == ending
    assert [delta.content for delta in await read(bench, run.run_id)] == ["one ", "two"]


async def test_the_text_of_a_later_attempt_goes_on_in_number_and_resets(
    make_bench: MakeBench,
) -> None:
    async def write(ctx: Context) -> None:
        if ctx.attempt != 2:
            for word in ("a", "b"):
                await ctx.text(f"{word}{ctx.attempt}")
                await ctx.flush_text()
        if ctx.attempt < 3:
            raise RuntimeError("again")

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    assert run.status == "succeeded"
    told = [
        (one.sequence, one.attempt, one.content, one.resets)
        for one in await read(bench, run.run_id)
    ]
    assert told == [
        (1, 1, "a1", False),
        (2, 1, "b1", False),
        (3, 3, "a3", True),
        (4, 3, "b3", False),
    ]
    head = await head_of(bench, run.run_id)
    assert (head.attempt, head.first_sequence, head.last_sequence) == (3, 3, 4)


async def test_plain_handlers_write_text_too(make_bench: MakeBench) -> None:
    app = App("plain")

    @app.run("write")
    def write(ctx: PlainContext, value: None) -> None:
        for word in ("from ", "a ", "thread"):
            ctx.text(word)

    bench = make_bench(app)
    run = await bench.done("write")
    assert "".join(one.content for one in await read(bench, run.run_id)) == "from a thread"


async def test_the_pause_between_deltas_grows_with_their_number(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a text of hours fits in the deltas that a run has."""
    monkeypatch.setattr(texting, "GATHER", 1000.0)
    waits: list[float] = []

    async def write(ctx: Context) -> None:
        if ctx.attempt == 1:
            await bench.execute(
                "INSERT INTO text_head VALUES ($1, $2, 1, 1, 1024, 0)", SCOPE, ctx.claimed.run_id
            )
            raise RuntimeError("again")
        begun = asyncio.get_running_loop().time()
        await ctx.text("late")
        await ctx.flush_text()
        assert ctx._writer is not None
        waits.append(ctx._writer._ripe_at - begun)

    bench = make_bench(app_of(write))
    await bench.done("write")
    assert waits == [pytest.approx(4000.0, abs=100)]


# ---- whose it is -------------------------------------------------------------------------------


async def stale_and_newer(bench: Bench, clock: ManualClock) -> tuple[Piece, Piece]:
    await bench.submit("write")
    (stale,) = await bench.claim()
    await clock.advance(seconds=46)
    await bench.worker._reaper.look()
    (newer,) = await bench.claim()
    return tuple(  # type: ignore[return-value]
        Piece(*claimed.key, claimed.fence, claimed.owner_token, f"by {claimed.fence}")
        for claimed in (stale, newer)
    )


async def idle(ctx: Context) -> None:
    return None


async def test_stale_text_does_not_slip_in_beside_that_of_a_newer_attempt(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P5: both attempts write through one process in the same moment."""
    bench = make_bench(app_of(idle))
    stale, newer = await stale_and_newer(bench, clock)
    stores = Texts(bench.engine, Leases(bench.engine.settings.lease))
    answers = await asyncio.gather(
        *(stores.write(piece) for piece in (stale, newer, stale)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [FencedOut, int, FencedOut]
    assert [one.content for one in await read(bench, newer.run_id)] == ["by 2"]


@pytest.mark.parametrize("guard", ["owner_token", "run_id", "scope_id"])
async def test_text_is_written_only_by_the_owner_of_that_run_in_that_scope(
    make_bench: MakeBench, guard: str
) -> None:
    """P5, P12."""
    bench = make_bench(app_of(idle))
    await bench.submit("write")
    (claimed,) = await bench.claim()
    given = {
        "scope_id": claimed.scope_id,
        "run_id": claimed.run_id,
        "owner_token": claimed.owner_token,
    }
    wrong = {**given, guard: "other" if guard == "scope_id" else uuid.uuid4()}
    stores = Texts(bench.engine, Leases(bench.engine.settings.lease))
    with pytest.raises(FencedOut):
        await stores.write(Piece(**wrong, fence=claimed.fence, content="x"))  # type: ignore[arg-type]
    assert await bench.value("SELECT count(*) FROM text_delta") == 0
    assert await bench.value("SELECT count(*) FROM text_head") == 0
    assert await bench.value("SELECT count(*) FROM text_quota") == 0


async def test_writing_text_renews_the_lease_and_hears_of_a_cancel(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(app_of(idle))
    run_id = await bench.submit("write")
    (claimed,) = await bench.claim()
    asked: list[bool] = []
    leases = Leases(bench.engine.settings.lease)
    leases.hold(claimed, 0.0, lambda: None, lambda: asked.append(True))
    before = await bench.lease_until(run_id)
    await clock.advance(seconds=20)
    await bench.cancel(run_id)
    piece = Piece(*claimed.key, claimed.fence, claimed.owner_token, "x")
    await Texts(bench.engine, leases).write(piece)
    after = await bench.lease_until(run_id)
    assert before is not None
    assert after is not None
    assert (after - before).total_seconds() == 20
    assert asked == [True]


# ---- bounds ------------------------------------------------------------------------------------


def refused(*pieces: str) -> tuple[Handler, list[BaseException]]:
    told: list[BaseException] = []

    async def write(ctx: Context) -> None:
        try:
            for piece in pieces:
                await ctx.text(piece)
        except Exception as error:
            told.append(error)
            raise

    return write, told


@pytest.mark.parametrize(
    ("piece", "error"),
    [
        ("x" * (MAX_DELTA_BYTES + 1), TextTooLong),
        ("é" * (MAX_DELTA_BYTES // 2 + 1), TextTooLong),
        ("a\x00b", InvalidRequest),
        ("a\ud800b", InvalidRequest),
    ],
    ids=["too many letters", "too many bytes", "a NUL", "half a letter"],
)
async def test_a_piece_that_cannot_be_stored_is_refused_where_it_is_written(
    make_bench: MakeBench, piece: str, error: type[Exception]
) -> None:
    write, told = refused("before", piece)
    bench = make_bench(app_of(write, max_attempts=1))
    run = await bench.done("write")
    assert [type(one) for one in told] == [error]
    assert run.status == "failed"
    assert [one.content for one in await read(bench, run.run_id)] == ["before"]


async def test_a_run_writes_no_more_than_its_bytes_and_is_not_tried_again_for_it(
    make_bench: MakeBench,
) -> None:
    """P10: a later attempt would only meet the same bound."""
    whole = "x" * MAX_DELTA_BYTES
    write, told = refused(*[whole] * (MAX_BYTES_OF_RUN // MAX_DELTA_BYTES), "y")
    bench = make_bench(app_of(write))
    run = await bench.done("write")
    assert str(told[0]) == f"a run has at most {MAX_BYTES_OF_RUN} bytes of text"
    assert (run.status, run.attempt, (run.error or {})["code"]) == ("failed", 1, "text_too_long")
    assert (await head_of(bench, run.run_id)).bytes == MAX_BYTES_OF_RUN
    assert {len(one.content) for one in await read(bench, run.run_id)} == {MAX_DELTA_BYTES}


async def test_a_run_has_no_more_than_its_deltas_over_all_attempts(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texting, "GATHER", 0.0)

    async def write(ctx: Context) -> None:
        await ctx.text("x")
        await ctx.flush_text()
        if ctx.attempt == 1:
            await bench.execute("UPDATE text_head SET last_sequence = $1", MAX_DELTAS_OF_RUN - 1)
            raise RuntimeError("again")
        await ctx.text("y")

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    assert (run.status, (run.error or {})["code"]) == ("failed", "text_too_long")
    assert str(MAX_DELTAS_OF_RUN) in (run.error or {})["detail"]
    assert (await head_of(bench, run.run_id)).last_sequence == MAX_DELTAS_OF_RUN


async def test_a_principal_has_room_for_so_much_and_others_are_not_held_up(
    make_bench: MakeBench,
) -> None:
    """The database counts; who is refused in a group is refused alone."""
    bench = make_bench(app_of(idle))
    await bench.execute(
        "INSERT INTO text_quota VALUES ($1, $2, $3)", SCOPE, MEMBER, MAX_BYTES_OF_PRINCIPAL - 3
    )
    for _ in range(2):
        await bench.submit("write")
    mine, other = [
        Piece(*claimed.key, claimed.fence, claimed.owner_token, "12345")
        for claimed in await bench.claim()
    ]
    await bench.execute("UPDATE run SET principal_id = 'another' WHERE run_id = $1", other.run_id)
    stores = Texts(bench.engine, Leases(bench.engine.settings.lease))
    full, stored = await asyncio.gather(
        stores.write(mine), stores.write(other), return_exceptions=True
    )
    assert isinstance(full, QuotaExceeded)
    assert str(MAX_BYTES_OF_PRINCIPAL) in str(full)
    assert stored == 1
    quotas = await bench.engine.database.promise(
        "text", lambda tx: tx.fetch("SELECT principal_id, bytes FROM text_quota ORDER BY 1")
    )
    assert [tuple(row) for row in quotas] == [
        ("another", 5), (MEMBER, MAX_BYTES_OF_PRINCIPAL - 3),
    ]  # fmt: skip


def test_the_database_holds_writers_to_the_bounds_of_the_code() -> None:
    from importlib import resources

    schema = resources.files("earnest.store") / "migrations" / "0004_text.sql"
    written = schema.read_text(encoding="utf-8")
    for bound in (MAX_DELTA_BYTES, MAX_BYTES_OF_RUN, MAX_DELTAS_OF_RUN, MAX_BYTES_OF_PRINCIPAL):
        assert str(bound) in written


async def test_text_waits_in_no_more_memory_than_a_delta(make_bench: MakeBench) -> None:
    """P10: whoever writes faster than the database stores is slowed down."""
    written = 0

    async def write(ctx: Context) -> None:
        nonlocal written
        for _ in range(40):
            await ctx.text("x" * 10_000)
            written += 1

    bench = make_bench(app_of(write))
    run_id = await bench.submit("write")
    async with holding_quota(bench):
        await bench.worker._claim_all()
        await bench.wait_for_lock_waiters()
        for _ in range(100):
            await asyncio.sleep(0)
        held = written
    await asyncio.wait(set(bench.worker._attempts))
    assert 0 < held * 10_000 <= 2 * MAX_DELTA_BYTES + 10_000
    assert written == 40
    assert (await head_of(bench, run_id)).bytes == 400_000


# ---- what goes wrong ---------------------------------------------------------------------------


async def test_a_step_is_remembered_although_text_before_it_could_not_be_stored(
    make_bench: MakeBench,
) -> None:
    """Text is progress: what was done does not depend on it."""

    async def write(ctx: Context) -> int:
        await ctx.text("too much")
        return await ctx.step("count", int, 7)

    bench = make_bench(app_of(write))
    await bench.execute(
        "INSERT INTO text_quota VALUES ($1, $2, $3)", SCOPE, MEMBER, MAX_BYTES_OF_PRINCIPAL
    )
    run = await bench.done("write")
    assert (run.status, run.output) == ("succeeded", 7)
    assert await read(bench, run.run_id) == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", ["text.before", "text.after"])
async def test_text_whose_reply_was_lost_is_stored_once(
    make_bench: MakeBench, at_points: AtPoints, point: str, nth: int
) -> None:
    """P23."""

    async def write(ctx: Context) -> None:
        for word in ("one ", "two ", "three"):
            await ctx.text(word)
            await ctx.flush_text()

    bench = make_bench(app_of(write))
    await bench.submit("write")
    cut = Cut(bench.engine.database.url, point, nth=nth)
    at_points(cut)
    run_id = await bench.value("SELECT run_id FROM run")
    await bench.drain()
    assert not cut.left
    found = await read(bench, run_id)
    assert [(one.sequence, one.content) for one in found] == [
        (1, "one "), (2, "two "), (3, "three"),
    ]  # fmt: skip


async def test_who_is_cancelled_while_text_is_on_its_way_loses_none_of_it(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(app_of(idle))
    run_id = await bench.submit("write")
    (claimed,) = await bench.claim()
    leases = Leases(bench.engine.settings.lease)
    lease = leases.hold(claimed, boot_seconds(), lambda: None, lambda: None)
    writer = TextWriter(Texts(bench.engine, leases), claimed, lease)
    async with holding_quota(bench):
        await writer.add("one ")
        flushing = asyncio.create_task(writer.flush())
        await bench.wait_for_lock_waiters()
        flushing.cancel()
        await asyncio.wait({flushing})
        assert flushing.cancelled()
        await writer.add("two")
    await writer.flush()
    assert [one.content for one in await read(bench, run_id)] == ["one ", "two"]


async def test_parallel_branches_write_into_one_text(make_bench: MakeBench) -> None:
    async def write(ctx: Context) -> None:
        async def branch(letter: str) -> None:
            for _ in range(50):
                await ctx.text(letter)
                await asyncio.sleep(0)

        await asyncio.gather(branch("a"), branch("b"))

    bench = make_bench(app_of(write))
    run = await bench.done("write")
    written = "".join(one.content for one in await read(bench, run.run_id))
    assert (written.count("a"), written.count("b")) == (50, 50)


# ---- how long it is kept -----------------------------------------------------------------------


async def test_text_is_kept_a_day_after_success_and_a_week_after_failure(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    bench = make_bench(app_of(idle))
    runs = {}
    for wish in (Wish.SUCCEED, Wish.FAIL, None):
        run_id = await bench.submit("write")
        (claimed,) = await bench.claim()
        piece = Piece(*claimed.key, claimed.fence, claimed.owner_token, "words")
        await Texts(bench.engine, Leases(bench.engine.settings.lease)).write(piece)
        if wish is not None:
            await bench.settle(claimed, wish)
        runs[wish] = run_id

    async def kept() -> set[Wish | None]:
        return {wish for wish, run_id in runs.items() if await read(bench, run_id)}

    quota = "SELECT bytes FROM text_quota"
    await clock.advance(seconds=text.KEPT_AFTER_SUCCESS.total_seconds())
    assert await prune_texts(bench.engine) == 0
    await clock.advance(seconds=1)
    assert await prune_texts(bench.engine) == 1
    assert await kept() == {Wish.FAIL, None}
    assert await bench.value(quota) == 10
    await clock.advance(seconds=text.KEPT_AFTER_FAILURE.total_seconds())
    assert await prune_texts(bench.engine) == 1
    assert await prune_texts(bench.engine) == 0
    assert await kept() == {None}
    assert await bench.value(quota) == 5
    head = await head_of(bench, runs[Wish.SUCCEED])
    assert (head.last_sequence, head.pruned_at is not None) == (1, True)


async def test_pruning_takes_a_few_runs_at_a_time(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    async def write(ctx: Context) -> None:
        await ctx.text("words")

    bench = make_bench(app_of(write))
    for _ in range(3):
        await bench.submit("write")
    await bench.drain()
    await clock.advance(seconds=2 * text.KEPT_AFTER_SUCCESS.total_seconds())
    assert [await prune_texts(bench.engine, limit=2) for _ in range(3)] == [2, 1, 0]
    assert await bench.value("SELECT count(*) FROM text_delta") == 0


async def test_text_whose_time_is_over_is_pruned_by_whoever_minds(
    make_bench: MakeBench, clock: ManualClock
) -> None:
    """P10: else a principal's quota would be used up one day, for ever."""

    async def write(ctx: Context) -> None:
        await ctx.text("words")

    bench = make_bench(app_of(write))
    await bench.done("write")
    await clock.advance(seconds=2 * text.KEPT_AFTER_SUCCESS.total_seconds())
    async with bench.at_work():
        await bench.wait_until_true("SELECT bytes = 0 FROM text_quota")
    assert await bench.value("SELECT count(*) FROM text_delta") == 0
