"""Artifacts from outside: brought, looked at, listed, downloaded in parts, deleted."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
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
    return await outside.post(
        "/v1/artifacts",
        who,
        content=data,
        params={"name": name, **query},
        headers={"Content-Type": "image/png", **(headers or {})},
    )


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


async def test_a_name_that_is_not_ascii_arrives_as_it_was(outside: Outside) -> None:
    """RFC 6266."""
    made = (await bring(outside, name='猫 "1%".png')).json()
    told = (await outside.get(made["links"]["content"])).headers["content-disposition"]
    assert told.startswith('attachment; filename="_ _1__.png"; ')
    assert "filename*=UTF-8''%E7%8C%AB%20%221%25%22.png" in told


@pytest.mark.parametrize(
    ("sent", "name"),
    [
        ('attachment; filename="b.txt"', "b.txt"),
        ("attachment; filename*=UTF-8''%E7%8C%AB.txt", "猫.txt"),
        ('form-data; filename="/etc/b.txt"', "b.txt"),
        ("attachment", "file"),
    ],
)
async def test_content_disposition_gives_the_name(outside: Outside, sent: str, name: str) -> None:
    answer = await outside.post(
        "/v1/artifacts", content=b"x", headers={"Content-Disposition": sent}
    )
    assert answer.json()["name"] == name
    assert answer.json()["media_type"] == "application/octet-stream"


# ---- what is refused ---------------------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["Content-Digest", "Repr-Digest"])
async def test_a_digest_that_is_right_is_taken(outside: Outside, name: str) -> None:
    """RFC 9530; of several algorithms ours counts."""
    digest = base64.b64encode(SHA256.digest()).decode()
    told = f"md5=:AAAA:, sha-256=:{digest}:"
    assert (await bring(outside, headers={name: told})).status_code == 201
    assert (await bring(outside, headers={"Digest": f"SHA-256={digest}"})).status_code == 201


@pytest.mark.parametrize("digest", ["sha-256=:abc:", "sha-256=::", "sha-256=:!!!:"])
async def test_a_digest_that_is_none_is_refused(outside: Outside, digest: str) -> None:
    answer = await bring(outside, headers={"Content-Digest": digest})
    assert answer.status_code == 400
    assert "sha-256=:BASE64:" in answer.json()["detail"]


async def test_too_much_is_refused_by_its_announcement(outside: Outside, engine: Engine) -> None:
    engine.settings = replace(engine.settings, max_artifact_bytes=1000)
    answer = await bring(outside)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert answer.headers["connection"] == "close"


async def test_no_room_is_told_with_when_to_come_again(outside: Outside, engine: Engine) -> None:
    engine.settings = replace(engine.settings, artifact_quota=1000)
    answer = await bring(outside)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_place_that_is_gone_is_busy_and_not_named(outside: Outside, engine: Engine) -> None:
    assert isinstance(engine.blobs, FolderBlobs)
    await bring(outside, b"first")
    engine.blobs.root.rename(engine.blobs.root.with_name("moved"))
    engine.blobs.root.write_text("no folder")
    answer = await bring(outside)
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert answer.headers["retry-after"]
    assert str(engine.blobs.root) not in answer.text
    assert len((await outside.get("/v1/artifacts")).json()["items"]) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Encoding": "gzip"},
    ],
)
async def test_what_would_be_kept_with_its_wrapping_is_refused(
    outside: Outside, headers: dict[str, str]
) -> None:
    assert (await bring(outside, headers=headers)).status_code == 415


@pytest.mark.parametrize(
    "query",
    [{"name": "a/b"}, {"name": ""}, {"expires_in": "soon"}, {"expires_in": "0s"}, {"nome": "x"},
     {"expires_in": "999999d"}],
)  # fmt: skip
async def test_what_is_said_beside_it_is_checked(outside: Outside, query: dict[str, Any]) -> None:
    assert (await bring(outside, **{"name": "x", **query})).status_code == 400


# ---- keys --------------------------------------------------------------------------------------


async def test_a_key_makes_one_artifact(outside: Outside, place: FolderBlobs) -> None:
    """P7."""
    key = {"Idempotency-Key": "cat"}
    first, again = await bring(outside, headers=key), await bring(outside, headers=key)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    for other in (
        await bring(outside, b"x", headers=key),
        await bring(outside, headers=key, name="x"),
    ):
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert (await bring(outside, who="member2", headers=key)).json()["id"] != first.json()["id"]
    assert len(files(place)) == 1


# ---- lists and runs ----------------------------------------------------------------------------


async def test_a_member_lists_its_own_and_an_operator_the_scopes(outside: Outside) -> None:
    """P12."""
    ids = [(await bring(outside, b"%d" % n)).json()["id"] for n in range(3)]
    his = (await bring(outside, b"his", "member2")).json()["id"]
    await bring(outside, b"elsewhere", "other member")
    assert [one["id"] for one in (await outside.get("/v1/artifacts")).json()["items"]] == ids[::-1]
    seen = (await outside.get("/v1/artifacts", "operator")).json()["items"]
    assert [one["id"] for one in seen] == [his, *ids[::-1]]


async def test_pages_go_on_where_they_ended(outside: Outside) -> None:
    ids = [(await bring(outside, b"%d" % n)).json()["id"] for n in range(5)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await outside.get("/v1/artifacts", params={"limit": "2", **cursor})).json()
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == ids[::-1]


async def test_a_file_for_a_run_is_told_in_the_run(outside: Outside) -> None:
    """P4, P22: and not once it has ended."""
    run = await outside.submit("shop.refund", {"order_id": "17", "amount": "20.00"}, key="r")
    path = f"/v1/runs/{run['id']}"
    made = (await bring(outside, run_id=run["id"])).json()
    assert made["run_id"] == run["id"]
    assert (await outside.get(f"{path}/artifacts")).json()["items"] == [made]
    told = (await outside.get(f"{path}/events")).json()["items"]
    assert told[-1]["type"] == "artifact.created"
    assert told[-1]["payload"]["artifact_id"] == made["id"]
    assert (await outside.call("DELETE", made["links"]["self"])).status_code == 409
    await outside.post(f"{path}/cancel")
    assert (await bring(outside, run_id=run["id"])).status_code == 409
    assert (await outside.call("DELETE", made["links"]["self"])).status_code == 204


async def test_an_operators_file_for_a_members_run_is_the_members(outside: Outside) -> None:
    run = await outside.submit("shop.echo", 1)
    made = (await bring(outside, who="operator", run_id=run["id"])).json()
    assert (await outside.get(made["links"]["content"])).content == PICTURE


@pytest.mark.parametrize("who", ["member2", "other member", "other operator"])
async def test_nobody_adds_to_a_run_that_is_not_theirs_to_see(outside: Outside, who: str) -> None:
    """P12."""
    run = await outside.submit("shop.echo", 1)
    assert (await bring(outside, who=who, run_id=run["id"])).status_code == 404


async def test_what_is_deleted_is_gone(outside: Outside, place: FolderBlobs) -> None:
    made = (await bring(outside)).json()
    assert (await outside.call("DELETE", made["links"]["self"])).status_code == 204
    for path in made["links"]["self"], made["links"]["content"]:
        assert (await outside.get(path)).status_code == 404
    assert (await outside.call("DELETE", made["links"]["self"])).status_code == 404
    assert files(place) == []


# ---- downloads ---------------------------------------------------------------------------------

SIZE = len(PICTURE)
RANGES = {
    "bytes=0-0": (0, 1),
    "bytes=5-1048579": (5, 1_048_580),
    "bytes=1048576-": (1_048_576, SIZE),
    "bytes=-10": (SIZE - 10, SIZE),
    f"bytes=7-{SIZE * 2}": (7, SIZE),
    f"bytes=-{SIZE * 2}": (0, SIZE),
}


@pytest.mark.parametrize("asked", RANGES)
async def test_a_range_is_that_part(outside: Outside, asked: str) -> None:
    """RFC 9110."""
    made = (await bring(outside)).json()
    answer = await outside.get(made["links"]["content"], headers={"Range": asked})
    start, end = RANGES[asked]
    assert answer.status_code == 206
    assert answer.content == PICTURE[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=9-5", "bytes=-", "lines=1-2", "bytes=0-1,5-6", "bytes=x"])
async def test_what_is_no_range_is_answered_with_the_whole(outside: Outside, asked: str) -> None:
    made = (await bring(outside)).json()
    answer = await outside.get(made["links"]["content"], headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, PICTURE)


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", "bytes=-0"])
async def test_a_range_beyond_the_end_is_told(outside: Outside, asked: str) -> None:
    made = (await bring(outside)).json()
    answer = await outside.get(made["links"]["content"], headers={"Range": asked})
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{SIZE}"


async def test_a_range_of_something_else_is_answered_with_the_whole(outside: Outside) -> None:
    made = (await bring(outside)).json()
    for tag, status in ((f'"{made["sha256"]}"', 206), ('"other"', 200)):
        asked = {"Range": "bytes=0-9", "If-Range": tag}
        answer = await outside.get(made["links"]["content"], headers=asked)
        assert answer.status_code == status


async def test_who_has_it_is_told_so(outside: Outside) -> None:
    made = (await bring(outside)).json()
    tag = f'"{made["sha256"]}"'
    for tags in (tag, f'"x", W/{tag}', "*"):
        for method in ("GET", "HEAD"):
            answer = await outside.call(
                method, made["links"]["content"], headers={"If-None-Match": tags}
            )
            assert (answer.status_code, answer.content) == (304, b"")
    other = await outside.get(made["links"]["content"], headers={"If-None-Match": '"x"'})
    assert other.status_code == 200


async def test_the_headers_can_be_asked_for_alone(outside: Outside) -> None:
    made = (await bring(outside)).json()
    whole = await outside.get(made["links"]["content"])
    head = await outside.call("HEAD", made["links"]["content"])
    assert head.content == b""
    for name in ("content-length", "content-type", "etag", "repr-digest", "content-disposition"):
        assert head.headers[name] == whole.headers[name]
    digest = base64.b64encode(SHA256.digest()).decode()
    assert whole.headers["repr-digest"] == f"sha-256=:{digest}:"


async def test_an_empty_file_is_a_file(outside: Outside) -> None:
    made = (await bring(outside, b"")).json()
    answer = await outside.get(made["links"]["content"])
    assert (answer.status_code, answer.content) == (200, b"")
    asked = {"Range": "bytes=0-"}
    answer = await outside.get(made["links"]["content"], headers=asked)
    assert answer.status_code == 416


async def test_what_is_damaged_from_the_start_is_a_problem(
    outside: Outside, place: FolderBlobs
) -> None:
    made = (await bring(outside)).json()
    (file,) = files(place)
    file.write_bytes(b"x" + PICTURE[1:])
    answer = await outside.get(made["links"]["content"])
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    asked = {"Range": "bytes=1048576-1048577"}
    good = await outside.get(made["links"]["content"], headers=asked)
    assert good.content == PICTURE[1048576:1048578]


# ---- quota -------------------------------------------------------------------------------------


async def test_the_first_scopes_admin_sets_a_quota_and_others_look_at_their_own(
    outside: Outside,
) -> None:
    path = "/v1/artifact-quotas/{}".format
    await bring(outside, b"12345")
    answer = await outside.call("PUT", path("other"), "admin", json={"quota_bytes": 3})
    assert answer.json() == {
        "scope_id": "other", "used_bytes": 0, "quota_bytes": 3, "is_default": False,
    }  # fmt: skip
    assert (await bring(outside, b"1234", "other member")).status_code == 429
    assert (await outside.get(path("other"), "other operator")).json()["quota_bytes"] == 3
    assert (await outside.get(path("demo"), "operator")).json()["used_bytes"] == 5
    assert (await outside.get(path("demo"), "other operator")).status_code == 404
    put = await outside.call("PUT", path("other"), "admin", json={"quota_bytes": None})
    assert put.json()["is_default"] is True
    for wrong in (-1, "5", 1.5, 2**63):
        refused = await outside.call("PUT", path("demo"), "admin", json={"quota_bytes": wrong})
        assert refused.status_code == 400
