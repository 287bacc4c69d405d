"""The place of this process's artifacts, and the mark by which a place knows its databases."""

from __future__ import annotations

import uuid

from earnest.domain import ids
from earnest.domain.errors import SettingInvalid
from earnest.engine.process.engine import Engine
from earnest.store.access import keep_setting
from earnest.store.blobs import Blobs
from earnest.store.database import Tx

_SETTING = "artifacts_of"
_MARK = "belongs-to-"


def place_of(engine: Engine) -> Blobs:
    """Raises `SettingInvalid` where the process was given none."""
    if engine.blobs is None:
        raise SettingInvalid(
            "this process has no place for artifacts; open Earnest with a home, or set "
            "EARNEST_ARTIFACTS to a folder or to s3://bucket/prefix"
        )
    return engine.blobs


async def mark(engine: Engine) -> None:
    """Leaves the database's mark in the place, once for each process, before its first bytes: who
    looks for bytes that nobody knows must not take another database's for such."""
    if not engine.blobs_marked:
        await place_of(engine).mark(await _own_mark(engine))
        engine.blobs_marked = True


async def require_alone(engine: Engine) -> None:
    """Raises `SettingInvalid` if another database, too, has put bytes there."""
    own = await _own_mark(engine)
    others = [name for name in await place_of(engine).marks(_MARK) if name != own]
    if others:
        raise SettingInvalid(
            f"{place_of(engine).told} holds artifacts of another database as well ({others[0]}); "
            "give each a folder or prefix of its own"
        )


async def _own_mark(engine: Engine) -> str:
    fresh = str(uuid.UUID(int=ids.new_token().int))

    async def work(tx: Tx) -> str:
        return await keep_setting(tx, _SETTING, fresh)

    return _MARK + await engine.database.promise("access", work)
