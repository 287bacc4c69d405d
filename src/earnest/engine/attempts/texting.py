"""Texting: what a handler writes for who watches, gathered and stored under its fence.

A model gives its words one by one; a row for each would cost more than the words. What comes within
a moment is stored as one delta, the first of it at once. The moment grows with the number of deltas
a run has, so that their bound is met by no text that is written at the pace of reading.

Text is progress. It is stored before the step, event or ending that comes after it in the handler,
and an attempt that lost its lease stores none (P5); but what a run did does not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import asyncpg

from earnest.domain import canonical, ids
from earnest.domain.errors import (
    EarnestError,
    FencedOut,
    InvalidRequest,
    QuotaExceeded,
    TextTooLong,
)
from earnest.domain.text import (
    KEPT_AFTER_FAILURE,
    KEPT_AFTER_SUCCESS,
    MAX_BYTES_OF_PRINCIPAL,
    MAX_BYTES_OF_RUN,
    MAX_DELTA_BYTES,
    MAX_DELTAS_OF_RUN,
    TextHead,
)
from earnest.engine.process.engine import Engine
from earnest.engine.process.logs import get_logger
from earnest.engine.runs.fencing import OwnersGroup, patiently
from earnest.engine.runs.leasing import HeldLease, Leases
from earnest.store import texts
from earnest.store.database import Tx
from earnest.store.executions import Claimed, Unwritten
from earnest.store.texts import Piece, Stored

log = get_logger("earnest.text")

GATHER = 0.08
"""Seconds between two deltas of a run that has few."""
_GROWS_EVERY = 512
_FULL = 16 * 1024
_AT_ONCE = 100

_BOUNDS = {
    "text_of_a_run_count": f"a run has at most {MAX_DELTAS_OF_RUN} pieces of text",
    "text_of_a_run_bytes": f"a run has at most {MAX_BYTES_OF_RUN} bytes of text",
}


async def prune_texts(
    engine: Engine,
    *,
    after_success: timedelta = KEPT_AFTER_SUCCESS,
    after_failure: timedelta = KEPT_AFTER_FAILURE,
    limit: int = 500,
) -> int:
    """Removes the text of runs that ended so long ago, of `limit` at most; returns of how many."""

    async def work(tx: Tx) -> int:
        return await texts.prune(tx, after_success, after_failure, limit)

    return await engine.database.promise("prune", work, one_statement=True)


class Texts:
    """Stores text for one process, of many runs in one statement."""

    def __init__(self, engine: Engine, leases: Leases) -> None:
        self._engine = engine
        self._group: OwnersGroup[Piece, Stored] = OwnersGroup(leases, self._store, _AT_ONCE)

    async def head(self, claimed: Claimed) -> TextHead:
        """What earlier attempts wrote. Before the first there was none."""
        if claimed.fence == 1:
            return TextHead()
        return await texts.find_head(self._engine.database, *claimed.key)

    async def write(self, piece: Piece) -> int:
        """Stores a piece; returns its sequence. Raises `FencedOut`, and `TextTooLong` or
        `QuotaExceeded` where it would pass a bound."""
        try:
            return (await self._group.put(piece)).sequence
        except asyncpg.CheckViolationError as error:
            raise _bound_of(error) from error

    async def _store(self, batch: Sequence[Piece]) -> list[Stored | Unwritten]:
        """A piece whose reply was lost is not stored twice."""
        lease = self._engine.settings.lease
        doubtful = False

        async def work(tx: Tx) -> list[Stored | Unwritten]:
            nonlocal doubtful
            known = [await texts.written_before(tx, piece) if doubtful else None for piece in batch]
            doubtful = True
            fresh = [piece for piece, stored in zip(batch, known, strict=True) if stored is None]
            answers = iter(await texts.write(tx, fresh, lease) if fresh else [])
            return [stored or next(answers) for stored in known]

        stored = await self._engine.database.promise("text", work, one_statement=True)
        self._engine.bells.moved(
            *(
                piece.run_id
                for piece, answer in zip(batch, stored, strict=True)
                if isinstance(answer, Stored)
            )
        )
        return stored


class TextWriter:
    """The text of one attempt. Pieces wait here until their moment has passed; one delta of the run
    is on its way at a time."""

    def __init__(self, stores: Texts, claimed: Claimed, lease: HeldLease) -> None:
        self._texts = stores
        self._claimed = claimed
        self._lease = lease
        self._earlier: TextHead | None = None
        self._waiting: list[str] = []
        self._waiting_bytes = 0
        self._bytes = 0
        self._deltas = 0
        self._last: int | None = None
        self._ripe_at = 0.0
        self._hurry = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        # Done when the newest delta is stored, or will never be.
        self._newest: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    async def add(self, piece: str) -> None:
        """Takes a piece; waits only while so much waits already that it would not fit in one delta.
        Raises what kept an earlier piece from being stored."""
        size = _size_of(piece)
        earlier = self._earlier or await self._look_back()
        while self._waiting_bytes + size > MAX_DELTA_BYTES:
            await self.flush()
        if self._failure is not None:
            raise self._failure
        if size:
            self._require_room(size, earlier)
            self._take(piece, size)

    async def flush(self) -> None:
        """Returns when what was taken until now is stored, or could not be: then the next piece is
        refused, and nothing else. A step that is done is remembered all the same."""
        if self._newest is not None:
            self._hurry.set()
            await asyncio.wait({self._newest})

    async def _look_back(self) -> TextHead:
        found = await self._texts.head(self._claimed)
        # Another branch may have found it meanwhile, and have written since.
        self._earlier = self._earlier or found
        return self._earlier

    def _require_room(self, size: int, earlier: TextHead) -> None:
        if earlier.bytes + self._bytes + size > MAX_BYTES_OF_RUN:
            raise TextTooLong(_BOUNDS["text_of_a_run_bytes"])
        deltas = self._deltas + (not self._waiting)
        if earlier.last_sequence + deltas > MAX_DELTAS_OF_RUN:
            raise TextTooLong(_BOUNDS["text_of_a_run_count"])

    def _take(self, piece: str, size: int) -> None:
        if not self._waiting:
            self._deltas += 1
            self._newest = asyncio.get_running_loop().create_future()
        self._waiting.append(piece)
        self._waiting_bytes += size
        self._bytes += size
        if self._waiting_bytes >= _FULL:
            self._hurry.set()
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())

    async def _write_waiting(self) -> None:
        while self._waiting:
            await self._until_ripe()
            content, stored = "".join(self._waiting), self._newest
            self._waiting.clear()
            self._waiting_bytes = 0
            self._hurry.clear()
            try:
                if self._failure is None:
                    self._last = await self._write(content)
            except Exception as error:  # whoever writes next is told
                self._fail(error)
            assert stored is not None, "made with the first piece that waits"
            stored.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        if not isinstance(error, FencedOut):
            shown = ids.show("run", self._claimed.run_id)
            log.warning("text.not_stored", run_id=shown, error=str(error))

    async def _until_ripe(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._ripe_at):
                await self._hurry.wait()
        assert self._earlier is not None, "it is looked up before anything is taken"
        before = self._earlier.last_sequence + self._deltas
        gather = GATHER * 2 ** (before // _GROWS_EVERY)
        self._ripe_at = asyncio.get_running_loop().time() + gather

    async def _write(self, content: str) -> int:
        """A quota on which somebody sits is waited for as long as the lease lives."""
        claimed = self._claimed
        piece = Piece(*claimed.key, claimed.fence, claimed.owner_token, content, self._last)
        return await patiently(self._lease.valid, partial(self._texts.write, piece))


def _bound_of(error: asyncpg.CheckViolationError) -> EarnestError:
    if error.constraint_name in _BOUNDS:
        return TextTooLong(_BOUNDS[error.constraint_name])
    return QuotaExceeded(
        f"at most {MAX_BYTES_OF_PRINCIPAL} bytes of text are kept for one principal; there is "
        "room again when older text has been pruned"
    )


def _size_of(piece: str) -> int:
    """Raises for what is no piece of text that can be stored."""
    if not canonical.storable(piece):
        raise InvalidRequest("a piece of text is a string without NUL and lone surrogates")
    size = len(piece.encode())
    if size > MAX_DELTA_BYTES:
        raise TextTooLong(f"a piece of text has at most {MAX_DELTA_BYTES} bytes; write it in parts")
    return size
