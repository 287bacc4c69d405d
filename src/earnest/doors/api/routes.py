"""How a route is declared: with the rule of who may come, its answer and its problems. There is no
way to declare one without a rule but to say `public`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, get_type_hints

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, JSONResponse, Response

from earnest.domain.errors import EarnestError, IdempotencyConflict, SettingInvalid
from earnest.doors.api import answers, sse
from earnest.doors.api.codes import BY_STATUS
from earnest.doors.api.frames import Frames
from earnest.doors.api.json_bodies import read_json
from earnest.doors.api.problems import code_of
from earnest.doors.api.rules import EVERYBODY, SIGNED, Rule
from earnest.doors.api.said_once import SaidOnce
from earnest.doors.api.visit import Visit, actor_of, admission, visit_of
from earnest.engine.process.actors import Role
from earnest.engine.process.epoch import POSITION_PATTERN

Handler = Callable[..., Awaitable[Response]]

MINE_OR_SCOPES = (Role.MEMBER, Role.OPERATOR)
"""Who does and sees runs: a member its own, an operator the scope's."""

_ALWAYS = (413, 500, 503)
_WITH_TOKEN = (400, 401, *_ALWAYS)
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FILE = {"*/*": _BYTES}


def _header(name: str, text: str, *, required: bool, **limits: Any) -> dict[str, Any]:
    described = {"name": name, "in": "header", "description": text, "required": required}
    return {**described, "schema": {"type": "string", **limits}}


def told_header(name: str, text: str) -> dict[str, Any]:
    """A header that a route takes and can do without."""
    return _header(name, text, required=False)


_KEY = "Names this request: sent again with the same key, it is done once. Bare or quoted."
_KEY_LIMITS = {
    "minLength": 1,
    "maxLength": 512,
    "pattern": '^([!#-~]([ -~]{0,253}[!-~])?|"([ !#-\\[\\]-~]|\\\\["\\\\]){1,255}")$',
    "examples": ["order-17"],
}
KEY_NEEDED = _header("Idempotency-Key", _KEY, required=True, **_KEY_LIMITS)
KEY_TAKEN = _header("Idempotency-Key", _KEY, required=False, **_KEY_LIMITS)
SIGNATURE = tuple(
    _header(name, text, required=False)
    for name, text in {
        "webhook-id": "The sender's id of the message, the same when it is sent again.",
        "webhook-timestamp": "When it was signed, in seconds; at most five minutes off.",
        "webhook-signature": "`v1,` and the signature; several are separated by blanks.",
    }.items()
)
TRACE_TAKEN = _header("traceparent", "W3C Trace Context; kept with the run.", required=False)
LAST_EVENT_ID = _header(
    "Last-Event-ID",
    "The `id` of the last event that a stream gave you; counts instead of the query's place.",
    required=False,
    pattern=POSITION_PATTERN,
)
LAST_TEXT_ID = _header(
    "Last-Event-ID",
    "The `id` of the last frame that a stream gave you; the larger of it and `after` counts.",
    required=False,
    pattern="^[0-9]{1,15}$",
)
VERSION_NEEDED = _header(
    "If-Match",
    "The `ETag` of the version that you looked at; needed while in doubt.",
    required=False,
)

VERSION_TAKEN = _header("If-Match", "The `ETag` of the version that you looked at.", required=False)
LOOKED_AT = _header(
    "If-Match",
    "The `ETag` of the version that you looked at; needed while it is pending.",
    required=False,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answers when all is well: its body, its status, other statuses with the same
    body, and the headers worth naming. A page has no body to describe. `items` are the frames of
    what is streamed, to everybody where there is no body and else to who asks for a stream; 204
    ends it for good, where it `ends`. A `file` is bytes of any type. Statuses in `bare` have no
    body."""

    body: Any
    status: int = 200
    also: dict[int, str] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    items: Frames | None = None
    ends: bool = True
    file: bool = False
    bare: dict[int, str] = field(default_factory=dict)


class JsonRoute(APIRoute):
    """A route whose body, where it has one, is read strictly before anything else sees it. `rule`
    says who may come; one that was not declared here has none, and is refused at start. `codes` are
    what it may be refused with, `frames` what it streams."""

    rule: Rule | None = None
    codes: frozenset[str] = frozenset()
    frames: Frames | None = None
    straight: Callable[[Request], Coroutine[Any, Any, Response]] | None = None

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        said_once = SaidOnce(self.endpoint, (self.openapi_extra or {}).get("parameters", []))
        if _takes_only_the_path(self.endpoint):
            self.straight = self._handle_at_once(said_once)
            return self.straight

        async def read_and_handle(request: Request) -> Response:
            said_once.require(request)
            return await handle(request if self.body_field is None else await read_json(request))

        return read_and_handle

    def _handle_at_once(
        self, said_once: SaidOnce
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As the framework would, without asking it: what such a handler takes is at hand, and to
        work that out for each request anew costs more than to answer it."""

        async def handle(request: Request) -> Response:
            said_once.require(request)
            assert self.rule is not None, "the application would not have started"
            self.rule.admit(actor_of(request))
            answer: Response = await self.endpoint(await visit_of(request), **request.path_params)
            return answer

        return handle


def _takes_only_the_path(handler: Handler) -> bool:
    """Whether it takes who asks and parts of the path, as they are, and nothing else."""
    hints = get_type_hints(handler)
    hints.pop("return", None)
    return Visit in hints.values() and set(hints.values()) <= {Visit, str}


Problems = tuple[int | type[EarnestError], ...]
"""What a route may refuse with: the error, or a status that says enough."""


@dataclass(frozen=True, slots=True)
class _Declared:
    path: str
    handler: Handler
    terms: dict[str, Any]
    rule: Rule
    answer: Answer
    codes: frozenset[str]


class Routes:
    """The routes of one noun; `add_to` an application."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._declared: list[_Declared] = []

    def get(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("GET", path, answer, **terms)

    def post(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("POST", path, answer, **terms)

    def head(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("HEAD", path, answer, **terms)

    def put(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("PUT", path, answer, **terms)

    def patch(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("PATCH", path, answer, **terms)

    def delete(self, path: str, answer: Answer, **terms: Any) -> Callable[[Handler], Handler]:
        return self._declare("DELETE", path, answer, **terms)

    def public(
        self, path: str, answer: Answer, problems: Problems = ()
    ) -> Callable[[Handler], Handler]:
        """A route for everybody: it must tell no facts."""
        codes = _codes((*_ALWAYS, *problems))
        return self._keep(path, _terms("GET", answer), EVERYBODY, answer, codes)

    def signed(
        self, path: str, answer: Answer, problems: Problems = ()
    ) -> Callable[[Handler], Handler]:
        """A route for whoever signs what it sends; the handler verifies it."""
        terms = _terms("POST", answer)
        body = {"content": {"application/json": {"schema": {}}}, "required": True}
        terms["openapi_extra"] = {
            "security": [{"signature": []}],
            "parameters": list(SIGNATURE),
            "requestBody": body,
        }
        codes = _codes((*_WITH_TOKEN, *problems))
        return self._keep(path, terms, SIGNED, answer, codes)

    def add_to(self, app: FastAPI) -> None:
        for one in self._declared:
            app.router.add_api_route(
                one.path, one.handler, route_class_override=JsonRoute, **one.terms
            )
            made = app.routes[-1]
            assert isinstance(made, JsonRoute), "as it was just said"
            made.rule, made.codes, made.frames = one.rule, one.codes, one.answer.items
            if made.body_field is not None:
                made.codes |= _codes((415,))

    def _declare(
        self,
        method: str,
        path: str,
        answer: Answer,
        *,
        roles: tuple[Role, ...],
        seen_by: tuple[Role, ...] = MINE_OR_SCOPES,
        of_first_scope: bool = False,
        problems: Problems = (),
        takes: tuple[dict[str, Any], ...] = (),
        takes_file: bool = False,
    ) -> Callable[[Handler], Handler]:
        """The three about who may come are the route's `Rule`. The handler looks for the thing that
        the path names as the actor, and then requires the role if `seen_by` holds more."""
        rule = Rule(roles, seen_by, of_first_scope, hides="{" in path)
        codes = _codes((*_WITH_TOKEN, *problems, 404 if rule.hides else 403))
        if (rule.hides and roles != seen_by) or of_first_scope:
            codes |= _codes((403,))
        taken = {one["name"] for one in takes}
        if "Idempotency-Key" in taken:
            codes |= _codes((IdempotencyConflict,))
        if "If-Match" in taken:
            codes |= _codes((412, 428))
        terms = _terms(method, answer)
        terms["dependencies"] = [Depends(admission(rule))]
        terms["openapi_extra"] = {
            "security": [{"token": [role.value]} for role in roles],
            "parameters": list(takes),
        }
        if takes_file:
            terms["openapi_extra"]["requestBody"] = {
                "description": "The bytes, of any media type but those of forms.",
                "content": {"application/octet-stream": _BYTES},
                "required": True,
            }
        return self._keep(path, terms, rule, answer, codes)

    def _keep(
        self,
        path: str,
        terms: dict[str, Any],
        rule: Rule,
        answer: Answer,
        codes: frozenset[str],
    ) -> Callable[[Handler], Handler]:
        def declare(handler: Handler) -> Handler:
            summary, _, rest = cleandoc(handler.__doc__ or "").partition("\n")
            told = {"summary": summary.rstrip("."), "description": rest, "tags": [self._noun]}
            declared = _Declared(path, handler, {**terms, **told}, rule, answer, codes)
            self._declared.append(declared)
            return handler

        return declare


def require_rules(app: FastAPI) -> None:
    """Raises `SettingInvalid` when a route of the application was declared without a rule."""
    unruled = [str(route) for route in app.routes if getattr(route, "rule", None) is None]
    if unruled:
        raise SettingInvalid(
            f"who may come to {', '.join(unruled)}? Declare it with `Routes`, which asks for roles"
        )


def _codes(problems: Problems) -> frozenset[str]:
    return frozenset(BY_STATUS[one] if isinstance(one, int) else code_of(one) for one in problems)


def _terms(method: str, answer: Answer) -> dict[str, Any]:
    return {
        "methods": [method],
        "response_class": _response_class(answer),
        "status_code": answer.status,
        "response_model": answer.body,
        "responses": _described(answer),
    }


def _response_class(answer: Answer) -> type[Response]:
    if answer.body is not None:
        return JSONResponse
    if answer.file or answer.status == 204:
        return Response
    return HTMLResponse if answer.items is None else sse.EventStream


def _described(answer: Answer) -> dict[int | str, dict[str, Any]]:
    headers = answers.headers(answer.headers)
    good: dict[int | str, dict[str, Any]] = {answer.status: {"headers": headers}}
    for status, text in answer.also.items():
        good[status] = {"model": answer.body, "description": text, "headers": headers}
    for status in (answer.status, *answer.also) if answer.file else ():
        good[status]["content"] = _FILE
    for status, text in answer.bare.items():
        good[status] = {"description": text, "headers": headers}
    if answer.items is not None:
        good[answer.status]["content"] = {sse.MEDIA_TYPE: {}}
    if answer.items is not None and answer.ends:
        nothing = "A stream would have nothing more to tell"
        good[204] = {"description": nothing, "headers": answers.headers(())}
    return good
