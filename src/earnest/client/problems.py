"""From a problem document (RFC 9457) back to the error that it tells of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx2
import msgspec

from earnest.client.errors import UnexpectedAnswer
from earnest.domain import errors
from earnest.domain.errors import EarnestError

_TOLD_OTHERWISE = {"type", "title", "status", "detail", "instance", "code", "reason", "request_id"}
_LATER = {429, 502, 503, 504}
"""Said also by what stands between us and the server."""


def error_of(answer: httpx2.Response) -> EarnestError:
    """The error that the answer, whose body was read, tells of. `fields` are its further members,
    `request_id` names the request in the server's log."""
    status = answer.status_code
    body = _body_of(answer)
    request_id = str(body.get("request_id") or answer.headers.get("x-request-id") or "") or None
    if "code" in body:
        code = str(body.get("reason") or body["code"])
        detail = str(body.get("detail") or body.get("title") or code)
        fields = {name: value for name, value in body.items() if name not in _TOLD_OTHERWISE}
        found = _class_of(code, str(body["code"]), status)(detail, fields=fields)
    else:
        found = _of_status(answer)
    found.request_id = request_id
    return found


def _of_status(answer: httpx2.Response) -> EarnestError:
    """Where something else than Earnest answered."""
    status = answer.status_code
    told = (
        f"{answer.request.url.copy_with(query=None)} answered {status} without a problem document"
    )
    if status in _LATER:
        return errors.Busy(told)
    return UnexpectedAnswer(f"{told}: is this the address of an Earnest API?")


def _body_of(answer: httpx2.Response) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(answer.content)
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}


@cache
def _class_of(code: str, coarse: str, status: int) -> type[EarnestError]:
    """The class of that code; for one that is not known here, a class of its own with the same
    meaning as far as that is known."""
    known = _classes()
    if code in known:
        return known[code]
    parent = known.get(coarse, EarnestError)
    return type("Problem", (parent,), {"__doc__": parent.__doc__, "code": code, "status": status})


@cache
def _classes() -> dict[str, type[EarnestError]]:
    return {one.code: one for one in _all_below(EarnestError) if one.__module__ == errors.__name__}


def _all_below(parent: type[EarnestError]) -> Iterator[type[EarnestError]]:
    for one in parent.__subclasses__():
        yield one
        yield from _all_below(one)
