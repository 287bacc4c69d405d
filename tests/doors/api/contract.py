"""Holds an answer against the OpenAPI document: what is not declared there is a fault.

`Contract.faults` is for every test that calls the API, in process or over a socket: status, media
type, headers, body, codes, and each frame of a stream. A field that the document does not know is a
fault, too, although clients are to pass over what they do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

import jsonschema_rs

from earnest.doors.api.events_told import misfit

# Of the transport, and on every answer: said once, in the document's introduction.
UNDECLARED = frozenset(
    """
    content-type content-length cache-control x-content-type-options connection date
    x-accel-buffering content-security-policy transfer-encoding allow
    """.split()
)


class Contract:
    """The document, and what was seen of it: `seen` holds (method, path, status)."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.seen: set[tuple[str, str, int]] = set()
        self._validators: dict[str, Any] = {}

    @cached_property
    def _strict(self) -> dict[str, Any]:
        """The components, with objects that have no other members than those that are named."""
        components = deepcopy(self.document["components"])
        for name, schema in components["schemas"].items():
            if "properties" in schema and "Problem" not in name:
                schema["additionalProperties"] = False
        found: dict[str, Any] = components
        return found

    def declares(self, method: str, path: str) -> bool:
        return method.lower() in self.document["paths"].get(path, {})

    def declared(self, method: str, path: str, status: int) -> dict[str, Any] | None:
        """What the document says of such an answer; `None` where it says nothing."""
        operation = self.document["paths"].get(path, {}).get(method.lower(), {})
        found: dict[str, Any] | None = operation.get("responses", {}).get(str(status))
        if found is not None and "$ref" in found:
            found = self.document["components"]["responses"][found["$ref"].rpartition("/")[2]]
        return found

    def faults(
        self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> list[str]:
        """What is wrong with an answer of the route with that path (a template)."""
        self.seen.add((method.upper(), path, status))
        declared = self.declared(method, path, status)
        if declared is None:
            return [f"{method} {path} answered {status}, which is not declared"]
        found = [*self._headers(declared, headers), *self._body(method, declared, headers, body)]
        return [f"{method} {path} {status}: {fault}" for fault in found]

    def _headers(self, declared: dict[str, Any], headers: Mapping[str, str]) -> Iterator[str]:
        told = {name.lower(): one for name, one in declared.get("headers", {}).items()}
        for name in {name.lower() for name in headers} - set(told) - UNDECLARED:
            yield f"the header {name} is not declared"
        for name, reference in told.items():
            header = self.document["components"]["headers"][reference["$ref"].rpartition("/")[2]]
            given = headers.get(name)
            if given is None and header["required"]:
                yield f"the header {name} is missing"
            if given is not None:
                number = header["schema"].get("type") == "integer" and given.isdigit()
                yield from self._misfits(header["schema"], int(given) if number else given)

    def _body(
        self, method: str, declared: dict[str, Any], headers: Mapping[str, str], body: bytes
    ) -> Iterator[str]:
        content = declared.get("content", {})
        media = headers.get("content-type", "").partition(";")[0]
        if method.upper() == "HEAD" or not (body or media):
            if body or (content and method.upper() != "HEAD"):
                yield "there is no body"
            return
        described = content.get(media, content.get("*/*"))
        if described is None:
            yield f"the media type {media!r} is not declared"
        elif media.endswith("json"):
            value = json.loads(body)
            yield from self._misfits(described.get("schema", {}), value)
            yield from _payloads(value.get("items") if isinstance(value, dict) else None)
        elif media == "text/event-stream":
            yield from self._frames(described["x-frames"], body.decode())

    def _frames(self, told: dict[str, Any], text: str) -> Iterator[str]:
        for frame in frames_of(text):
            name = frame.get("event", "message")
            if name not in told:
                yield f"a frame {name!r} is not declared"
                continue
            if "id" in frame and told[name]["id"] is None:
                yield f"a frame {name!r} has an id"
            if "id" not in frame and told[name]["id"] is not None:
                yield f"a frame {name!r} has no id"
            if "id" in frame and told[name]["id"] is not None:
                yield from self._misfits(told[name]["id"], frame["id"])
            value = json.loads(frame["data"])
            yield from self._misfits(told[name]["data"], value)
            yield from _payloads([value])

    def _misfits(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {**schema, "components": self._strict}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole)
        for error in self._validators[key].iter_errors(value):
            yield f"{'/'.join(map(str, error.instance_path))}: {error.message}"[:400]


def _payloads(items: Any) -> Iterator[str]:
    """The engine's events hold what is told of them."""
    for one in items if isinstance(items, list) else ():
        if isinstance(one, dict) and {"type", "payload", "seq"} <= one.keys():
            wrong = misfit(one["type"], one["payload"])
            if wrong is not None:
                yield f"the payload of {wrong} is not as it is told"


def frames_of(text: str) -> Iterator[dict[str, str]]:
    """The frames of a stream that carry data, as fields by name."""
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(event|id|data): ?(.*)$", block))
        if "data" in fields:
            yield fields
