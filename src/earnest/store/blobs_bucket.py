"""Blobs in an S3 bucket, through `obstore` (the extra `earnest[s3]`).

Credentials, region and endpoint are those of the usual variables (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL` …). An upload in several parts becomes an
object only when all of them are there; one that is broken off is aborted. Parts of a process that
was killed stay until the bucket's rule for incomplete uploads removes them.

Its blocking calls are made in threads: the asynchronous ones of 0.12 crash an interpreter that ends
soon after one of them, and one that is cancelled leaves its parts behind.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from earnest.domain.artifact import PIECE_BYTES, BlobKey
from earnest.domain.errors import SettingInvalid, StorageUnavailable
from earnest.store.blobs import BlobMissing, Listed, key_at, path_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Store

T = TypeVar("T")

_PART_BYTES = 8 * PIECE_BYTES
_PAGE = 500
_CALLS_AT_ONCE = 32
_WAITING_PIECES = 4
_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}
_PATIENCE: ClientConfig = {"connect_timeout": "5s", "timeout": "60s"}


class BrokenOff(Exception):
    """Told to an upload whose pieces will not all come."""


class BucketBlobs:
    """The objects under a store's prefix."""

    def __init__(self, store: S3Store, told: str) -> None:
        self._store = store
        self.told = told
        # A long upload must not take the threads that others need.
        self._calls = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="earnest-s3")

    async def write(self, key: BlobKey, pieces: AsyncIterable[bytes]) -> None:
        import obstore

        feed = _Feed()
        upload = asyncio.ensure_future(
            self._in_own_thread(
                lambda: obstore.put(
                    self._store, path_of(key), iter(feed), chunk_size=_PART_BYTES, max_concurrency=2
                )
            )
        )
        try:
            async for piece in pieces:
                await feed.put(piece, upload)
            await feed.put(None, upload)
        except BaseException:
            feed.break_off()
            await asyncio.wait({upload})
            upload.exception()  # it was told why
            raise
        await asyncio.shield(upload)

    async def read(self, key: BlobKey, start: int, end: int) -> AsyncIterator[bytes]:
        # Piece by piece: how long a slow reader takes is no matter between two calls.
        while start < end:
            until = min(start + PIECE_BYTES, end)
            chunk = await self._call(
                partial(self._range, key, start, until),
                key,
            )
            if not chunk:
                return
            start += len(chunk)
            yield chunk

    async def remove(self, key: BlobKey) -> None:
        await self._remove(path_of(key))

    async def size(self, key: BlobKey) -> int | None:
        import obstore

        try:
            head = await self._call(lambda: obstore.head(self._store, path_of(key)), key)
        except BlobMissing:
            return None
        return int(head["size"])

    async def pages(self) -> AsyncIterator[list[Listed]]:
        import obstore

        pages = iter(obstore.list(self._store, chunk_size=_PAGE))
        while page := await self._call(lambda: next(pages, None)):
            yield [
                Listed(found["path"], key_at(found["path"]), found["last_modified"])
                for found in page
            ]

    async def remove_listed(self, found: Listed) -> None:
        await self._remove(found.path)

    async def mark(self, name: str) -> None:
        await self._put(name, b"")

    async def marks(self, prefix: str) -> list[str]:
        import obstore

        def work() -> list[str]:
            # A listing goes by whole parts of a path; marks lie at the top.
            found = obstore.list_with_delimiter(self._store)["objects"]
            return sorted(one["path"] for one in found if one["path"].startswith(prefix))

        return await self._call(work)

    async def probe(self) -> None:
        path = f"probe-{uuid.uuid4().hex}"
        await self._put(path, b"earnest")
        await self._remove(path)

    async def _put(self, path: str, data: bytes) -> None:
        import obstore

        await self._call(lambda: obstore.put(self._store, path, data, use_multipart=False))

    def _range(self, key: BlobKey, start: int, end: int) -> bytes:
        import obstore

        return bytes(obstore.get_range(self._store, path_of(key), start=start, end=end))

    async def _remove(self, path: str) -> None:
        import obstore

        def work() -> None:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

        await self._call(work)

    async def _call(self, work: Callable[[], T], key: BlobKey | None = None) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._calls, lambda: self._told_of(work, key))

    async def _in_own_thread(self, work: Callable[[], T]) -> T:
        """An upload takes as long as who sends it, and holds no place of shorter calls."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = self._told_of(work, None)
            except BaseException as error:
                loop.call_soon_threadsafe(_settle, done, error, None)
            else:
                loop.call_soon_threadsafe(_settle, done, None, result)

        threading.Thread(target=run, name="earnest-s3-upload", daemon=True).start()
        return await done

    def _told_of(self, work: Callable[[], T], key: BlobKey | None) -> T:
        """What the bucket says against it, in our words: its own name hosts and requests."""
        from obstore.exceptions import BaseError

        try:
            return work()
        except FileNotFoundError as error:
            if key is None:
                raise StorageUnavailable(f"{self.told} is not there; make the bucket") from error
            raise BlobMissing(f"{path_of(key)} is not in {self.told}") from error
        except (BaseError, OSError, ValueError) as error:
            raise StorageUnavailable(f"{self.told} {_why(error)}") from error


class _Feed:
    """Pieces on their way from the event loop to the thread of an upload, few at a time."""

    def __init__(self) -> None:
        self._pieces: queue.Queue[bytes | BrokenOff | None] = queue.Queue()
        self._room = asyncio.Semaphore(_WAITING_PIECES)
        self._loop = asyncio.get_running_loop()

    async def put(self, piece: bytes | None, upload: asyncio.Future[Any]) -> None:
        """Waits for room. Raises what ended the upload."""
        room = asyncio.ensure_future(self._room.acquire())
        try:
            await asyncio.wait({room, upload}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if upload.done():
            upload.result()
            raise StorageUnavailable("the upload ended before all of it was there")
        self._pieces.put(piece)

    def break_off(self) -> None:
        self._pieces.put(BrokenOff())

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            if isinstance(piece, BrokenOff):
                raise piece
            yield piece
            self._loop.call_soon_threadsafe(self._room.release)


def _settle(done: asyncio.Future[Any], error: BaseException | None, result: Any) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _why(error: Exception) -> str:
    from obstore import exceptions

    match error:
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return "refuses us; look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and its policy"
        case _:
            return "cannot be reached or did not take it; look at AWS_ENDPOINT_URL and try again"


def open_bucket(setting: str) -> BucketBlobs:
    """The place that `s3://bucket/prefix` names; nobody is asked yet. Raises `SettingInvalid`."""
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise SettingInvalid(
            "EARNEST_ARTIFACTS names a bucket, which needs the extra: pip install 'earnest[s3]'"
        ) from error
    parts = urlsplit(setting)
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if not bucket or parts.query or parts.fragment or "@" in bucket:
        raise SettingInvalid("EARNEST_ARTIFACTS is no bucket; write s3://bucket/prefix")
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    options: ClientConfig = {**_PATIENCE, "allow_http": endpoint.startswith("http://")}
    try:
        store = S3Store(
            bucket,
            prefix=prefix or None,
            client_options=options,
            retry_config=_RETRIES,
        )
    except Exception as error:
        raise SettingInvalid(f"the bucket {bucket[:80]!r} cannot be used: {error}") from error
    return BucketBlobs(store, f"s3://{bucket}/{prefix}".rstrip("/"))
