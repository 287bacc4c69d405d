"""What a stream of server-sent events is made of, for the OpenAPI document.

OpenAPI 3.1 has no word for the parts of a stream. Each frame that may be in one, with the schema of
its `data`, is told under `x-frames`, beside an example of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any

from earnest.doors.api.examples import example_of

MEDIA_TYPE = "text/event-stream"
UNNAMED = "message"
"""What clients call an event that has no name."""


@dataclass(frozen=True, slots=True)
class Frames:
    """The frames of one stream: the shape of each one's data by its name, and which of them have
    an id, a place to go on from, that looks like `place`."""

    shapes: Mapping[str, Any]
    with_id: tuple[str, ...]
    place: str
    example_place: str

    def content(self, schemas: Mapping[str, Any]) -> dict[str, Any]:
        """The media type's description; `schemas` are the document's components."""
        frames = {name: self._frame(name, schemas) for name in self.shapes}
        example = "retry: 2000\n\n" + "".join(one["example"] for one in frames.values())
        return {"example": example, "x-frames": frames}

    def _frame(self, name: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
        shape = self.shapes[name].__name__
        schema = {"$ref": f"#/components/schemas/{shape}"}
        has_id = name in self.with_id
        told: dict[str, Any] = {
            "description": " ".join(cleandoc(self.shapes[name].__doc__ or "").split()),
            "id": {"type": "string", "pattern": self.place} if has_id else None,
            "data": schema,
            "example": self._example(name, example_of(schema, schemas), has_id),
        }
        return told

    def _example(self, name: str, value: Any, has_id: bool) -> str:
        lines = [] if name == UNNAMED else [f"event: {name}"]
        lines += [f"id: {self.example_place}"] if has_id else []
        data = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return "\n".join([*lines, f"data: {data}", "", ""])
