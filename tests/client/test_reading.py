"""What a client passes on of what a stream says: each event once, in order, none left out (P9)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from httpx2 import ServerSentEvent

from earnest.client.errors import UnexpectedAnswer
from earnest.client.reading import FeedEvents, RunEvents, TextOfRun
from earnest.client.values import Event, Resync, TextPiece, TextReset

AT = datetime(2026, 1, 1, tzinfo=UTC)


def event(seq: int, epoch: str = "e", *, final: bool = False) -> ServerSentEvent:
    data = {"seq": seq, "type": "t.t", "run_id": "run_1", "created_at": str(AT), "payload": {}}
    return frame("message", {**data, **({"final": True} if final else {})}, f"{epoch}-{seq}")


def frame(name: str, data: Any, id: str = "") -> ServerSentEvent:
    return ServerSentEvent(name, json.dumps(data), id)


def resync(head: int, epoch: str = "e") -> ServerSentEvent:
    data = {"status": "resync_required", "after_seq": 1, "minimum_retained_seq": 9}
    return frame("resync_required", {**data, "head_seq": head}, f"{epoch}-{head}")


def passed_on(reader: RunEvents | FeedEvents, *frames: ServerSentEvent) -> list[int]:
    told = [reader.take(one) for one in frames]
    return [one.seq for one in told if isinstance(one, Event)]


def test_the_next_one_is_passed_on_and_one_that_was_is_ignored() -> None:
    reader = RunEvents("run_1", 2)
    assert passed_on(reader, *map(event, [2, 3, 3, 1, 4])) == [3, 4]
    assert (reader.place, reader.broken, reader.ended) == ("e-4", False, False)


def test_after_a_gap_the_stream_is_broken_and_the_place_is_kept() -> None:
    reader = RunEvents("run_1")
    assert passed_on(reader, event(1), event(3)) == [1]
    assert (reader.place, reader.broken) == ("e-1", True)


def test_the_same_number_of_another_life_is_a_gap() -> None:
    reader = RunEvents("run_1", "e-4")
    assert passed_on(reader, event(5, "f")) == []
    assert (reader.place, reader.broken) == ("e-4", True)
    assert passed_on(RunEvents("run_1", 4), event(5, "f")) == [5]


def test_after_a_resync_what_comes_next_comes_after_it() -> None:
    reader = RunEvents("run_1", "e-4")
    told = reader.take(resync(12, "f"))
    assert isinstance(told, Resync)
    assert (told.id, told.head_seq, reader.place) == ("f-12", 12, "f-12")
    assert passed_on(reader, event(12, "f"), event(13, "f")) == [13]


def test_the_final_event_ends_it_and_so_does_the_servers_word() -> None:
    reader = RunEvents("run_1")
    assert passed_on(reader, event(1, final=True)) == [1]
    assert reader.ended
    for reason, ended in (("final", True), ("rotated", False), ("shutdown", False)):
        other = RunEvents("run_1")
        assert other.take(frame("stream_end", {"reason": reason})) is None
        assert other.ended is ended


def test_what_is_not_known_is_not_looked_at() -> None:
    reader = RunEvents("run_1")
    assert reader.take(frame("heartbeat", {"head_seq": 5})) is None
    assert reader.take(frame("something.new", [])) is None
    with pytest.raises(UnexpectedAnswer):
        reader.take(ServerSentEvent("message", "no json", "e-1"))


def test_a_feed_has_gaps_and_its_heartbeats_have_places() -> None:
    reader = FeedEvents()
    assert passed_on(reader, event(3), event(7), event(7), event(5)) == [3, 7]
    reader.take(frame("heartbeat", {"head_seq": 9}, "e-9"))
    assert reader.place == "e-9"
    assert passed_on(reader, event(8), event(10)) == [10]
    assert passed_on(reader, event(1, "f")) == [1]


def test_text_is_passed_on_once_and_begins_anew_after_a_reset() -> None:
    def piece(sequence: int, attempt: int = 1) -> ServerSentEvent:
        return frame("delta", {"sequence": sequence, "attempt": attempt, "content": str(sequence)})

    reader = TextOfRun("run_1")
    frames = [piece(1), piece(1), piece(2), frame("reset", {"attempt": 2})]
    # The connection breaks here: the server tells the reset again with what comes after it.
    frames += [frame("reset", {"attempt": 2}), piece(3, 2), frame("reset", {"attempt": 0})]
    frames += [piece(1, 3), frame("progress", {}), frame("terminal", {}, "2")]
    told = [one for one in map(reader.take, frames) if one is not None]
    assert told == [
        TextPiece(1, 1, "1"),
        TextPiece(2, 1, "2"),
        TextReset(2),
        TextPiece(3, 2, "3"),
        TextReset(0),
        TextPiece(1, 3, "1"),
    ]
    assert reader.ended
