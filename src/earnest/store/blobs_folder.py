"""Blobs in a folder of this machine, or one that all machines share.

A blob is written beside its place, made durable, and then renamed to its name: whoever finds the
name finds all of its bytes, also after a loss of power. Folder and files are their owner's alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from earnest.domain.artifact import PIECE_BYTES, BlobKey
from earnest.domain.errors import StorageUnavailable
from earnest.store.blobs import BlobMissing, Listed, key_at, path_of

T = TypeVar("T")

_PART = ".part"
_PAGE = 500
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota of the disk is used up"}


class FolderBlobs:
    """`root` is made when it is first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def told(self) -> str:
        return str(self.root)

    async def write(self, key: BlobKey, pieces: AsyncIterable[bytes]) -> None:
        place = self._place(key)
        part = place.with_name(place.name + _PART)
        file = await self._do("written to", lambda: _create(self.root, part))
        try:
            async for piece in pieces:
                await self._do("written to", partial(_write_all, file, piece))
            await self._do("written to", lambda: _finish(file, part, place))
        except BaseException:
            await _whole(lambda: _abandon(file, part))
            raise

    async def read(self, key: BlobKey, start: int, end: int) -> AsyncIterator[bytes]:
        file = await self._do("read", lambda: _open_at(self._place(key), start), key)
        try:
            while start < end:
                most = min(PIECE_BYTES, end - start)
                chunk = await self._do("read", partial(file.read, most))
                if not chunk:
                    return
                start += len(chunk)
                yield chunk
        finally:
            file.close()

    async def remove(self, key: BlobKey) -> None:
        place = self._place(key)
        part = place.with_name(place.name + _PART)
        await self._do("removed from", lambda: _unlink(place, part))

    async def size(self, key: BlobKey) -> int | None:
        return await self._do("looked at", lambda: _size_of(self._place(key)))

    async def pages(self) -> AsyncIterator[list[Listed]]:
        walk = _walk(self.root)
        while page := await self._do("looked at", lambda: list(itertools.islice(walk, _PAGE))):
            yield page

    async def remove_listed(self, found: Listed) -> None:
        await self._do("removed from", lambda: _unlink(self.root / found.path))

    async def mark(self, name: str) -> None:
        await self._do("written to", lambda: _create(self.root, self.root / name).close())

    async def marks(self, prefix: str) -> list[str]:
        found = await self._do("looked at", lambda: list(self.root.glob(f"{prefix}*")))
        return sorted(mark.name for mark in found)

    async def probe(self) -> None:
        await self._do("written to", lambda: _try_out(self.root))

    async def _do(self, doing: str, work: Callable[[], T], key: BlobKey | None = None) -> T:
        """In a thread; what the disk says against it is told in our words."""
        try:
            return await _whole(work)
        except OSError as error:
            if key is not None and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise BlobMissing(f"{path_of(key)} is not in {self.root}") from error
            why = _FULL.get(error.errno or 0) or (error.strerror or str(error)).lower()
            raise StorageUnavailable(
                f"the folder of artifacts, {self.root}, cannot be {doing}: {why}"
            ) from error

    def _place(self, key: BlobKey) -> Path:
        return self.root / path_of(key)


async def _whole(work: Callable[[], T]) -> T:
    """Does it in a thread, to its end: who is cancelled meanwhile waits for the thread first, so
    that nobody uses a file that is being closed."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _create(root: Path, part: Path) -> FileIO:
    for folder in (root, part.parent.parent, part.parent):
        _make_folder(folder)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    return FileIO(descriptor, "wb")


def _open_at(place: Path, start: int) -> FileIO:
    file = FileIO(place, "rb")
    file.seek(start)
    return file


def _size_of(place: Path) -> int | None:
    try:
        return place.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _make_folder(folder: Path) -> None:
    """One that is made survives a loss of power, since files in it shall."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        _sync_folder(folder.parent)


def _write_all(file: FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _finish(file: FileIO, part: Path, place: Path) -> None:
    os.fsync(file.fileno())
    file.close()
    part.rename(place)
    _sync_folder(place.parent)


def _abandon(file: FileIO, part: Path) -> None:
    with contextlib.suppress(OSError):
        file.close()
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(*places: Path) -> None:
    for place in places:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            place.unlink()


def _walk(root: Path) -> Iterator[Listed]:
    """All files; what vanishes while it is walked over was not there."""
    for folder, _, names in os.walk(root):
        for name in names:
            file = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):
                at = datetime.fromtimestamp(file.lstat().st_mtime, UTC)
                path = file.relative_to(root).as_posix()
                yield Listed(path, key_at(path.removesuffix(_PART)), at)


def _try_out(root: Path) -> None:
    probe = root / f"probe-{uuid.uuid4().hex}"
    file = _create(root, probe)
    try:
        _write_all(file, b"earnest")
        os.fsync(file.fileno())
    finally:
        _abandon(file, probe)
