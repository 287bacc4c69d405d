"""What the frames of each stream mean, and in which order they are passed on: each once, none left
out. Nothing here reads or waits."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from httpx2 import ServerSentEvent

from earnest.client.calling import Query, path_of
from earnest.client.errors import UnexpectedAnswer
from earnest.client.values import Event, Resync, TextPiece, TextReset
from earnest.domain.errors import InvalidRequest

T = TypeVar("T")


class _End(msgspec.Struct):
    reason: str = ""


class RunEvents:
    """The events of one run after a number, or after the id of one that was read before."""

    def __init__(self, run_id: str, after: int | str = 0) -> None:
        self.path = path_of("runs", run_id, "events")
        self.query: Query = {}
        self.place = str(after)
        self.ended = False
        self.broken = False
        self._epoch, self._seq = _position(self.place)

    def take(self, frame: ServerSentEvent) -> Event | Resync | None:
        if frame.event == "message":
            return self._event(frame)
        if frame.event == "resync_required":
            return self._resync(frame)
        if frame.event == "stream_end":
            self.ended = _decoded(frame, _End).reason == "final"
        return None

    def _event(self, frame: ServerSentEvent) -> Event | None:
        """The next one. One that was passed on already is ignored; for one that is farther on, or
        of another life of the database, the stream is broken."""
        epoch, seq = _position(frame.id)
        same_life = self._epoch in (epoch, "")
        if same_life and seq <= self._seq:
            return None
        if not same_life or seq != self._seq + 1:
            self.broken = True
            return None
        told = msgspec.structs.replace(_decoded(frame, Event), id=frame.id)
        self._go_on_from(frame.id)
        self.ended = told.final
        return told

    def _resync(self, frame: ServerSentEvent) -> Resync:
        told = msgspec.structs.replace(_decoded(frame, Resync), id=frame.id)
        self._go_on_from(frame.id)
        self.ended = told.snapshot is not None and told.snapshot.final
        return told

    def _go_on_from(self, place: str) -> None:
        self.place = place
        self._epoch, self._seq = _position(place)


class FeedEvents:
    """The events of all runs of a scope that one may see. Between two positions some may be
    missing: those of others."""

    def __init__(self, cursor: str | None = None) -> None:
        self.path = path_of("events")
        self.query: Query = {"cursor": cursor}
        self.place = ""
        self.ended = False
        self.broken = False

    def take(self, frame: ServerSentEvent) -> Event | Resync | None:
        told: Event | Resync | None = None
        if frame.event == "message":
            if self._passed(frame.id):
                return None
            told = msgspec.structs.replace(_decoded(frame, Event), id=frame.id)
        elif frame.event == "resync_required":
            told = msgspec.structs.replace(_decoded(frame, Resync), id=frame.id)
        self.place = frame.id or self.place  # a heartbeat has one, too
        return told

    def _passed(self, place: str) -> bool:
        if not self.place:
            return False
        (epoch, seq), (now, last) = _position(place), _position(self.place)
        return epoch == now and seq <= last


class TextOfRun:
    """The text of one run after a sequence."""

    def __init__(self, run_id: str, after: int = 0) -> None:
        self.path = path_of("runs", run_id, "text-events")
        self.query: Query = {}
        self.place = str(after)
        self.ended = False
        self.broken = False
        self._anew = False

    def take(self, frame: ServerSentEvent) -> TextPiece | TextReset | None:
        if frame.event == "delta":
            return self._piece(frame)
        if frame.event == "reset":
            # Whoever is cut off before the text that follows is told of it again.
            told, again = _decoded(frame, TextReset), self._anew
            self._anew = True
            return None if again else told
        self.ended = frame.event == "terminal"
        return None

    def _piece(self, frame: ServerSentEvent) -> TextPiece | None:
        told = _decoded(frame, TextPiece)
        # After a reset the sequence may begin anew: in another life of the database it does.
        if not self._anew and told.sequence <= int(self.place):
            return None
        self.place, self._anew = str(told.sequence), False
        return told


def _position(text: str) -> tuple[str, int]:
    """Epoch and number of an id; a bare number is of whatever life the database leads now."""
    epoch, _, number = text.rpartition("-")
    if not (number.isascii() and number.isdigit()):
        raise InvalidRequest(f"{text!r} is no place among events: use a number, or an event's id")
    return epoch, int(number)


def _decoded(frame: ServerSentEvent, type: type[T]) -> T:
    try:
        return msgspec.json.decode(frame.data, type=type)
    except msgspec.MsgspecError as error:
        raise UnexpectedAnswer(f"the stream is none that this client knows: {error}") from error
