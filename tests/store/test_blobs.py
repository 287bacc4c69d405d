"""The places of bytes keep one promise: all of them or none, in a folder as in a bucket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from earnest.domain import ids
from earnest.domain.artifact import PIECE_BYTES, BlobKey
from earnest.domain.errors import SettingInvalid, StorageUnavailable
from earnest.store.blobs import BlobMissing, Blobs, key_at, open_blobs, path_of
from earnest.store.blobs_folder import FolderBlobs
from tests.moto import Moto, environment

KINDS = ["folder", "bucket"]


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    server = Moto().start()
    yield server
    server.kill()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    if request.param == "folder":
        return FolderBlobs(tmp_path / "artifacts")
    moto: Moto = request.getfixturevalue("moto")
    return moto.bucket(f"bucket-{uuid.uuid4().hex}")


def new_key(scope_id: str = "demo") -> BlobKey:
    return BlobKey(scope_id, ids.new_id())


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for piece in given:
        yield piece


async def read(place: Blobs, key: BlobKey, start: int = 0, end: int = 2**40) -> bytes:
    size = await place.size(key)
    assert size is not None
    return b"".join([chunk async for chunk in place.read(key, start, min(end, size))])


async def lying(place: Blobs) -> list[str]:
    return sorted([one.path async for page in place.pages() for one in page])


@pytest.mark.parametrize("sizes", [(), (5,), (PIECE_BYTES,) * 18 + (7,)])
async def test_what_is_written_is_read_back(place: Blobs, sizes: tuple[int, ...]) -> None:
    given = [os.urandom(size) for size in sizes]
    key = new_key()
    await place.write(key, pieces(*given))
    whole = b"".join(given)
    assert await place.size(key) == len(whole)
    assert await read(place, key) == whole
    assert await read(place, key, 3, 2_000_000) == whole[3:2_000_000]


async def test_what_is_broken_off_was_never_there(place: Blobs) -> None:
    async def broken_off() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(PIECE_BYTES)
        raise ConnectionResetError("gone")

    key = new_key()
    with pytest.raises(ConnectionResetError):
        await place.write(key, broken_off())
    assert await place.size(key) is None
    assert await lying(place) == []


async def test_who_is_cancelled_while_writing_leaves_nothing(place: Blobs) -> None:
    under_way = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(PIECE_BYTES)
        under_way.set()
        await asyncio.Event().wait()

    key = new_key()
    writing = asyncio.create_task(place.write(key, endless()))
    await under_way.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await lying(place) == []


async def test_an_upload_that_is_broken_off_leaves_no_parts(moto: Moto) -> None:
    """They would be paid for, and nobody would see them."""
    name = f"bucket-{uuid.uuid4().hex}"
    await test_who_is_cancelled_while_writing_leaves_nothing(moto.bucket(name))
    assert "<Upload>" not in moto.parts_left(name)


async def test_removing_is_harmless_when_repeated(place: Blobs) -> None:
    key = new_key()
    await place.write(key, pieces(b"here"))
    await place.remove(key)
    await place.remove(key)
    assert await place.size(key) is None
    with pytest.raises(BlobMissing):
        await anext(aiter(place.read(key, 0, 4)))


async def test_a_listing_tells_whose_bytes_are_where(place: Blobs) -> None:
    keys = {new_key(), new_key("other"), new_key("a.b-c_d")}
    for key in keys:
        await place.write(key, pieces(b"x"))
    await place.mark("belongs-to-me")
    found = [one async for page in place.pages() for one in page]
    assert {one.key for one in found} == {*keys, None}
    assert await place.marks("belongs-to-") == ["belongs-to-me"]
    for one in found:
        await place.remove_listed(one)
        await place.remove_listed(one)
    assert await lying(place) == []


async def test_a_place_that_can_be_used_says_so(place: Blobs) -> None:
    await place.probe()
    assert await lying(place) == []


async def test_a_bucket_that_is_gone_is_told_in_one_line() -> None:
    server = Moto()  # never started: nobody listens there
    with environment(
        AWS_ENDPOINT_URL=server.url,
        AWS_ACCESS_KEY_ID="key",
        AWS_SECRET_ACCESS_KEY="do-not-tell",
        AWS_REGION="us-east-1",
    ):
        place = open_blobs("s3://bucket/files", Path("unused"))
    with pytest.raises(StorageUnavailable) as refusal:
        await place.write(new_key(), pieces(b"x"))
    told = refusal.value.detail
    assert "s3://bucket/files cannot be reached" in told
    assert "do-not-tell" not in told
    assert "\n" not in told
    with pytest.raises(StorageUnavailable):
        await place.probe()


async def test_a_bucket_that_is_not_there_is_told_in_one_line(moto: Moto) -> None:
    with environment(
        AWS_ENDPOINT_URL=moto.url, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s", AWS_REGION="e"
    ):
        place = open_blobs("s3://nobody-made-it", Path("unused"))
    with pytest.raises(StorageUnavailable, match="make the bucket"):
        await place.write(new_key(), pieces(b"x"))


async def test_a_folder_that_cannot_be_written_to_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = FolderBlobs(tmp_path / "file" / "artifacts")
    with pytest.raises(StorageUnavailable, match="cannot be written to: file exists"):
        await place.write(new_key(), pieces(b"x"))
    with pytest.raises(StorageUnavailable):
        await place.probe()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "earnest-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("a small disk can only be made by root, where mounting is allowed")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_told_and_loses_nothing(small_disk: Path) -> None:
    place = FolderBlobs(small_disk / "artifacts")
    kept = new_key()
    await place.write(kept, pieces(b"kept"))
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        await place.write(new_key(), pieces(*(bytes(PIECE_BYTES) for _ in range(6))))
    assert await lying(place) == [path_of(kept)]
    assert await read(place, kept) == b"kept"
    await place.write(new_key(), pieces(bytes(PIECE_BYTES)))


# ---- names and settings ------------------------------------------------------------------------


def test_a_path_tells_its_key_and_no_other_path_does() -> None:
    key = new_key("a-scope.of_1")
    assert key_at(path_of(key)) == key
    for path in ("README", f"x/{path_of(key)}", path_of(key) + "0", f"Demo/00/{'0' * 32}"):
        assert key_at(path) is None


def test_a_scope_whose_name_is_no_folder_has_no_artifacts() -> None:
    with pytest.raises(SettingInvalid):
        path_of(new_key("../etc"))


@pytest.mark.parametrize("setting", ["gs://bucket", "s3://", "s3://user@bucket/x", "s3://b?x=1"])
def test_a_setting_that_names_no_place_is_refused(setting: str) -> None:
    with pytest.raises(SettingInvalid, match="EARNEST_ARTIFACTS"):
        open_blobs(setting, Path("home"))


def test_without_a_setting_the_place_is_in_the_home(tmp_path: Path) -> None:
    assert open_blobs(None, tmp_path).told == str(tmp_path / "artifacts")
    assert open_blobs(str(tmp_path / "x"), tmp_path).told == str(tmp_path / "x")


def test_a_process_that_used_a_bucket_ends_well(moto: Moto) -> None:
    """With the asynchronous calls of the client, one of two such processes was aborted."""
    code = (
        "import asyncio\nfrom tests.moto import *\n"
        "from tests.store.test_blobs import *\n"
        f"server = Moto(); server.url = {moto.url!r}\n"
        "place = server.bucket('ends-well')\n"
        "key = new_key()\n"
        "asyncio.run(place.write(key, pieces(b'x')))\n"
        "asyncio.run(place.remove(key))\n"
    )
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert ended.returncode == 0, ended.stderr
