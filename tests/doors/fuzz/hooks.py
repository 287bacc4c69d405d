"""What schemathesis cannot know of the target: which kinds it has, which things are there, and
by whose tokens it comes in, which it must not revoke.

Loaded by schemathesis in its own process; `FUZZ_TARGET` is what the target said of itself.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import schemathesis
from schemathesis import GenerationMode

TARGET: dict[str, Any] = json.loads(os.environ["FUZZ_TARGET"])

OWN_TOKENS = {token.split("_")[1] for token in TARGET["tokens"].values() if "_" in token}
OWN_PEOPLE = {"ann", "bob", "cleo", "dan", "eve", "fay", "gus", "hal", "ida", "zoe"}
INPUTS = {
    "shop.echo": {"said": [1, "two"]},
    "shop.order": {"order_id": "17", "amount": "20.00"},
    "shop.fail": "because",
    "shop.many": 3,
    "shop.parent": 2,
    "shop.wait": "go",
    "shop.ask": {"pay": 20},
    "shop.refund": {"order_id": "17", "amount": "20.00"},
    "shop.inquire": {"order_id": "17", "amount": "20.00"},
}
KNOWN = {
    "lane": "default",
    "effect": "shop.listable",
    "url": "https://example.com/hooks",
    "secret": "whsec_" + "c2VjcmV0" * 4,
    "expires_at": "2999-01-31T12:00:00Z",
    "principal_id": "ann",
    "admin": "ann",
    "receipt": {"id": "r-1"},
    "handler": "bank",
    "since": "2020-01-31T12:00:00Z",
}
"""Of these no schema can say which are there."""


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    if _is_positive(case):
        _use_what_is_there(case)
    _spare_ourselves(case)


def _is_positive(case: Any) -> bool:
    return case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE


def _use_what_is_there(case: Any) -> None:
    """Ids of things, where an invented one would find nothing, and what only the target knows."""
    chosen = random.Random(str(case.path_parameters))
    for name, value in (case.path_parameters or {}).items():
        things = TARGET["things"].get(name, ())
        if things and value not in things and chosen.random() < 0.7:
            case.path_parameters[name] = chosen.choice(things)
    if case.query and "cursor" in case.query and case.operation.label != "GET /v1/events":
        del case.query["cursor"]  # none can be invented
    if case.query and case.query.get("name") and case.operation.label == "POST /v1/artifacts":
        case.query["name"] = "letter.pdf"  # which characters can be printed no pattern says
    if isinstance(case.body, dict):
        _say_what_is_known(case, chosen)


def _say_what_is_known(case: Any, chosen: random.Random) -> None:
    body = case.body
    body.update({name: value for name, value in KNOWN.items() if body.get(name)})
    if case.operation.label == "POST /v1/runs":
        kind = chosen.choice(sorted(INPUTS))
        body.update(kind=kind, input=INPUTS[kind])


def _spare_ourselves(case: Any) -> None:
    given = case.path_parameters or {}
    if case.method in ("DELETE", "PUT", "POST", "PATCH"):
        if given.get("token_id") in OWN_TOKENS:
            given["token_id"] = "0" * 16
        if given.get("principal_id") in OWN_PEOPLE:
            given["principal_id"] = "nobody-we-know"
