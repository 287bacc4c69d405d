"""As sent: what makes two requests for a run the same one (P7).

It is the canonical JSON of what was handed over, before the kind's type fills in or rewrites
anything: a client that repeats itself repeats this, whatever code stands here by then. HTTP hands
over a body; Python and the command line the same two members, and SQL compares by them too.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from earnest.domain import canonical
from earnest.engine.process.typed_json import in_order

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


def request(kind: str, value: Any) -> Any:
    """The body that would ask for this. A model leaves out what it was not given. `None` for an
    input that is no JSON: what its type writes is compared then."""
    try:
        told = _ANYTHING.dump_python(value, exclude_unset=True, warnings="none")
        plain = _ANYTHING.dump_python(value, mode="json", exclude_unset=True, warnings="none")
        body = {"kind": kind, "input": in_order(plain, told)}
        canonical.encode(body)
    except (ValueError, RecursionError):
        return None
    return body


def fingerprint(kind: str, value: Any) -> bytes:
    """That of a request for this kind with this JSON."""
    return canonical.digest(canonical.encode({"kind": kind, "input": value}))


def is_as_written(found: bytes, kind: str, data: bytes) -> bool:
    """Whether a fingerprint is the one of what the kind's type wrote: what was handed over was no
    JSON before."""
    return found == canonical.digest(b"\x00".join((kind.encode(), data)))
