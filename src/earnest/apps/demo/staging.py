"""What the demo finds in its database: two scopes, who acts in them, and a few runs to look at."""

from __future__ import annotations

from earnest.apps.demo.folder import DemoFolder, Tokens
from earnest.domain.errors import Unauthenticated
from earnest.engine.process import access, principals, scopes, tokens
from earnest.engine.process.engine import Engine
from earnest.engine.runs import submitting
from earnest.engine.runs.submitting import Request

SCOPE = "demo"
CAST = {
    "demo": {
        "member": "member",
        "member2": "member",
        "approver": "approver",
        "operator": "operator",
        "admin": "admin",
    },
    "other": {"member": "member", "operator": "operator"},
}
"""The principals of each scope, with the one role that each has."""

ORDERS = range(1001, 1006)
AMOUNT = "20.00"

_SAMPLER = "sampler"
_SAMPLES = (
    ("demo.echo", {"message": "hello"}),
    ("demo.steps", {"count": 5, "fail_at": 3}),
    ("demo.children", {"count": 3}),
)


async def stage(engine: Engine, folder: DemoFolder) -> Tokens:
    """Makes what is missing and returns the tokens; those of an earlier start, where they still
    open something."""
    known, made = folder.tokens(), {}
    for scope_id, people in CAST.items():
        await scopes.ensure_scope(engine, scope_id)
        made[scope_id] = {
            principal_id: await _token(engine, scope_id, principal_id, role, known)
            for principal_id, role in people.items()
        }
    if made != known:
        folder.keep_tokens(made)
    await _submit_samples(engine)
    return made


async def _token(engine: Engine, scope_id: str, principal_id: str, role: str, known: Tokens) -> str:
    await principals.ensure_principal(engine, scope_id, principal_id, [role])
    kept = known.get(scope_id, {}).get(principal_id, "")
    try:
        actor = await access.authenticate(engine, kept)
    except Unauthenticated:
        return await tokens.issue_token(engine, scope_id, principal_id)
    if (actor.scope_id, actor.principal_id) != (scope_id, principal_id):
        return await tokens.issue_token(engine, scope_id, principal_id)
    return kept


async def _submit_samples(engine: Engine) -> None:
    """By a principal of its own, so that they are nobody's but the operator's to see; once."""
    await principals.ensure_principal(engine, SCOPE, _SAMPLER, ["member"])
    for kind, value in _SAMPLES:
        await submitting.submit(engine, SCOPE, _SAMPLER, Request(kind, value, f"sample-{kind}"))
