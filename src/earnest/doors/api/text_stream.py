"""A run's text as it is written, over server-sent events.

A reader has a place, the sequence of the last piece it was given. What was written after it is sent
in order, from the table and then live; how the run stands is told when that changes. The end is the
run as it stands, with its output. Its frame has a place of its own, one beyond the text: who was
given the last piece and nothing more still hears of the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response

from earnest.domain.errors import InvalidRequest, NotFound, Unauthenticated
from earnest.domain.run import Run, RunStatus
from earnest.domain.text import Standing
from earnest.doors.api import problems, shapes, sse
from earnest.doors.api.frames import Frames
from earnest.doors.api.headers import last_event_id
from earnest.doors.api.parameters import read_sequence
from earnest.doors.api.reader import Reader, first_of
from earnest.doors.api.showing import show_run_snapshot, show_standing
from earnest.doors.api.sse import Ending, EventStream, Left, Wire
from earnest.doors.api.streams import Streams
from earnest.doors.api.visit import Visit
from earnest.engine.process.logs import get_logger
from earnest.engine.runs import reading
from earnest.engine.streams.tails import Frame
from earnest.engine.streams.text_streaming import TextWatch
from earnest.store import texts

log = get_logger("earnest.streams")

Told = tuple[RunStatus, str | None, float | None]

FRAMES = Frames(
    {
        "progress": shapes.TextProgress,
        "delta": shapes.TextPiece,
        "reset": shapes.TextReset,
        "terminal": shapes.RunSnapshot,
        "error": shapes.TextError,
        "stream_end": shapes.StreamEnd,
    },
    ("delta", "terminal"),
    "^[0-9]+$",
    "3",
)
_AWAY = "the text cannot be read now; come again"
_BROKEN = "this is our fault and has been logged; come again"


def sequence_asked(headers: Headers, after: int) -> int:
    """After which sequence a reader goes on: the larger one of `Last-Event-ID`, which a client
    sends by itself when it comes again, and the query's. Raises `InvalidRequest`."""
    given = last_event_id(headers)
    try:
        return after if given is None else max(after, read_sequence(given))
    except ValueError as error:
        raise InvalidRequest(f"Last-Event-ID: {error}") from error


async def stream_text(visit: Visit, streams: Streams, run_id: str, after: int) -> Response:
    """The answer: the stream, or 204 for who was given the end, so that an `EventSource` stops
    coming again. Raises `NotFound`."""
    life = await streams.life()
    run = await visit.run(run_id)
    key = (run.scope_id, run.run_id)
    standing = (await texts.standings(visit.engine.database, [(key, 0)])).get(key)
    if standing is None:
        raise NotFound("the run was removed meanwhile")
    if standing.final and after > standing.last_sequence:
        return Response(status_code=204)
    reader = TextReader(visit, streams, life, run, standing, after)
    deadline = streams.settings.send_deadline.total_seconds()
    return EventStream(reader.tell, deadline=deadline, farewell=reader.farewell)


@dataclass(slots=True, eq=False)
class TextReader(Reader[TextWatch, list[Frame]]):
    """One reader of one run's text. `after` is the sequence of the last piece it was given,
    `standing` how the run stood when it came."""

    run: Run
    standing: Standing
    after: int
    told: Told | None = field(init=False, default=None)
    failed: bool = field(init=False, default=False)

    async def follow(self, wire: Wire) -> Ending:
        await wire.send(sse.comment("connected") + sse.retry())
        try:
            return await self._follow(wire)
        except (Left, NotFound, Unauthenticated):
            raise
        except Exception as error:
            await self._tell_failure(wire, error)
            return Ending.BUSY

    def farewell(self, ending: Ending) -> bytes:
        """After the run itself, or an error, there is nothing more to say."""
        if self.failed:
            return sse.come_again(ending)
        return b"" if ending is Ending.FINAL else sse.stream_end(ending)

    def require_sees(self) -> Ending | None:
        if self.visit.actor.sees_only() not in (None, self.run.principal_id):
            raise NotFound("not this actor's to see")
        return None

    def heartbeat(self) -> bytes:
        return sse.comment("heartbeat")

    async def _follow(self, wire: Wire) -> Ending:
        run, hub = self.run, self.life.texts
        with hub.watch(run.scope_id, run.run_id, self.standing, wire.flag) as watch:
            if self.after > self.standing.last_sequence:
                await self._begin_anew(wire)
            if not self.standing.final:
                await self._show(wire, self.standing)
            return await self.take_turns(wire, watch)

    def at_hand(self, watch: TextWatch) -> list[Frame] | None:
        return watch.at_hand(self.after)

    async def page(self, watch: TextWatch) -> list[Frame] | None:
        frames = await watch.page(self.after, self.visit.actor.sees_only())
        if not frames:
            self.after = watch.head  # it is not kept any more; the end of the run tells all
        return frames or None

    async def take(self, wire: Wire, watch: TextWatch, page: list[Frame]) -> Ending | None:
        standing = watch.standing
        if page:
            await self._deliver(wire, page)
        elif standing.told != self.told:
            await self._show(wire, standing)
        elif standing.final and self.after >= standing.last_sequence:
            return await self._end(wire)
        else:
            await self.rest(wire)
        return None

    async def _deliver(self, wire: Wire, frames: list[Frame]) -> None:
        chunk = first_of(frames)
        await wire.send(b"".join(frame.data for frame in chunk))
        self.after = chunk[-1].seq

    async def _show(self, wire: Wire, standing: Standing) -> None:
        self.told = standing.told
        await wire.send(sse.control("progress", show_standing(standing)))

    async def _begin_anew(self, wire: Wire) -> None:
        """A place that the text of a run that goes on has not reached is of another life of the
        database; what its reader has of the text is not this one's."""
        told: shapes.TextReset = {"attempt": self.standing.attempt}
        self.after = 0
        await wire.send(sse.control("reset", told))

    async def _end(self, wire: Wire) -> Ending:
        run = await reading.find_run(self.visit.engine, self.visit.actor, self.run.run_id)
        await wire.send(sse.control("terminal", show_run_snapshot(run), str(self.after + 1)))
        return Ending.FINAL

    async def _tell_failure(self, wire: Wire, error: Exception) -> None:
        away = isinstance(error, TimeoutError) or problems.is_busy(error)
        if not away:
            log.error("stream.broken", run_id=str(self.run.run_id), error=type(error).__name__)
        told: shapes.TextError = {"message": _AWAY if away else _BROKEN}
        self.failed = True
        await wire.send(sse.control("error", told))
