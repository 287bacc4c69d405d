"""Artifacts from outside: brought, looked at, listed, downloaded in parts, deleted."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs
from tests.doors.api.outside import Outside

PICTURE = bytes(range(256)) * 9_000  # more than two pieces
SHA256 = hashlib.sha256(PICTURE)


@pytest.fixture(autouse=True)
def place(engine: Engine, tmp_path: Path) -> FolderBlobs:
    engine.blobs = FolderBlobs(tmp_path / "artifacts")
    return engine.blobs


async def bring(
    outside: Outside,
    data: bytes = PICTURE,
    who: str = "member",
    name: str = "cat.png",
    headers: dict[str, str] | None = None,
    **query: str,
) -> Any:
    answer = await outside.post(
        "/v1/artifacts",
        who,
        content=data,
        params={"name": name, **query},
        headers={"Content-Type": "image/png", **(headers or {})},
    )
    return answer


def files(place: FolderBlobs) -> list[Path]:
    return [path for path in place.root.rglob("*") if path.is_file() and "belongs" not in path.name]


async def test_what_is_brought_is_there_byte_for_byte(outside: Outside) -> None:
    answer = await bring(outside)
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"].startswith("art_")
    assert made["sha256"] == SHA256.hexdigest()
    assert (made["name"], made["media_type"], made["size"]) == (
        "cat.png",
        "image/png",
        len(PICTURE),
    )
    assert answer.headers["location"] == made["links"]["self"]
    assert (await outside.get(made["links"]["self"])).json() == made
    content = await outside.get(made["links"]["content"])
    assert content.content == PICTURE
    assert content.headers["content-type"] == "image/png"
    assert content.headers["etag"] == f'"{SHA256.hexdigest()}"'
    assert content.headers["content-disposition"] == 'attachment; filename="cat.png"'
    assert content.headers["content-security-policy"] == "sandbox"


async def test_what_was_announced_otherwise_leaves_nothing(
    outside: Outside, place: FolderBlobs, engine: Engine
) -> None:
    wrong = base64.b64encode(bytes(32)).decode()
    answer = await bring(outside, headers={"Content-Digest": f"sha-256=:{wrong}:"})
    assert answer.status_code == 400
    assert "SHA-256" in answer.json()["detail"]
    assert files(place) == []
    assert (await outside.get("/v1/artifacts")).json()["items"] == []
    assert await engine.database.fetch("discarded_blobs", "", "0" * 32, 10) == []
