"""Streams in the OpenAPI document, and what is sent held against it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import TypeAdapter

from earnest.doors.api import shapes
from tests.doors.streams.conftest import MakeStage
from tests.doors.streams.reading import Item
from tests.doors.streams.stage import Stage

PATH = "/v1/runs/{run_id}/events"
SHAPES: dict[str, Any] = {
    "message": shapes.Event,
    "heartbeat": shapes.Heartbeat,
    "resync_required": shapes.Resync,
    "stream_end": shapes.StreamEnd,
}


def _hold(item: Item) -> None:
    """What the shape does not know is lost on the way through it, so both ways must be equal."""
    adapter = TypeAdapter(SHAPES[item.event])
    assert adapter.dump_python(adapter.validate_python(item.data), mode="json") == item.data


def _document(stage: Stage) -> dict[str, Any]:
    document: dict[str, Any] = stage.app.openapi()
    return document


async def test_every_event_that_is_sent_has_its_declared_shape(make_stage: MakeStage) -> None:
    stage = await make_stage(heartbeat=timedelta(seconds=0.1))
    run = await stage.run(5)
    await run.forget_before(4)
    stream = await stage.open(run, after=1)
    items = await stream.until("heartbeat")
    await run.append(nested={"deep": [1, "é", None]})
    await run.finish()
    items += await stream.rest()
    assert {item.event for item in items} == set(SHAPES)
    for item in items:
        _hold(item)


async def test_the_document_declares_what_a_stream_is_made_of(stage: Stage) -> None:
    operation = _document(stage)["paths"][PATH]["get"]
    assert set(operation["responses"]["200"]["content"]) == {
        "application/json",
        "text/event-stream",
    }
    frames = operation["responses"]["200"]["content"]["text/event-stream"]["x-frames"]
    assert set(frames) == set(SHAPES)
    shapes = {name: frame["data"]["$ref"].rpartition("/")[2] for name, frame in frames.items()}
    assert shapes == {name: shape.__name__ for name, shape in SHAPES.items()}
    assert "204" in operation["responses"]
    assert "content" not in operation["responses"]["204"]
    (header,) = [one for one in operation["parameters"] if one["in"] == "header"]
    assert (header["name"], header["required"]) == ("Last-Event-ID", False)
