"""Artifacts over HTTP: bring a file, fetch one, each checked by its hash."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import httpx2

from earnest.client.calling import AGAIN, Caller, Changes, Content, Query, keyed, path_of
from earnest.client.errors import DownloadDamaged, Unreachable
from earnest.client.patience import Patience
from earnest.client.problems import error_of
from earnest.client.values import Artifact
from earnest.domain.errors import EarnestError, InvalidRequest

Source = bytes | Path | Iterable[bytes] | AsyncIterable[bytes]
"""What a file's bytes come from."""

PIECE = 256 * 1024


class FileCalls:
    """What is done with artifacts."""

    _caller: Caller

    async def upload(
        self,
        source: Source,
        *,
        name: str | None = None,
        media_type: str = "application/octet-stream",
        run_id: str | None = None,
        expires_in: str | None = None,
        key: str | None = None,
    ) -> Artifact:
        """Stores a file: bytes, the file at a path, or what an iterator gives, sent as it comes.

        The server checks the hash of bytes and of a file at a path, and they are sent again where
        a try broke. What an iterator gives can be sent once: `OutcomeUnknown` says that it may or
        may not have been stored. `expires_in` is a span such as `12h`. Raises `QuotaExceeded`,
        `PayloadTooLarge`.
        """
        if isinstance(source, Path) and name is None:
            name = source.name
        query = {"name": name, "run_id": run_id, "expires_in": expires_in}
        headers = {**keyed(key), "Content-Type": media_type}
        if isinstance(source, bytes | Path):
            headers |= await asyncio.to_thread(_measured, source)
            answer = await self._send_whole(source, query, headers)
        else:
            answer = await self._send_once(source, query, headers)
        return Changes(headers).decoded(answer, Artifact)

    async def artifact(self, artifact_id: str) -> Artifact:
        """What an artifact is. Raises `NotFound`."""
        return await self._caller.read(Artifact, path_of("artifacts", artifact_id))

    def artifacts(self, *, run_id: str | None = None) -> AsyncGenerator[Artifact, None]:
        """All artifacts that one may see, newest first; with a run, its own, oldest first."""
        path = path_of("artifacts") if run_id is None else path_of("runs", run_id, "artifacts")
        return self._caller.pages(Artifact, path)

    async def delete_artifact(self, artifact_id: str) -> None:
        """Deletes an artifact; one of a run that goes on is kept (`Conflict`). Raises `NotFound`
        also where it was deleted by an earlier try whose answer was lost."""
        await self._caller.ask("DELETE", path_of("artifacts", artifact_id))

    async def content(self, artifact_id: str) -> AsyncGenerator[bytes, None]:
        """The bytes of an artifact, in pieces as they come. Where the connection breaks it goes on
        with the byte after. Raises `DownloadDamaged` at the end if they are not what was stored."""
        artifact = await self.artifact(artifact_id)
        digest = hashlib.sha256()
        async with aclosing(_Download(self._caller, artifact).pieces()) as pieces:
            async for piece in pieces:
                digest.update(piece)
                yield piece
        if digest.hexdigest() != artifact.sha256:
            raise DownloadDamaged(f"what came is not what was stored as {artifact_id}; try again")

    async def download(self, artifact_id: str, to: Path | str) -> Path:
        """Writes an artifact into a file. It is there whole and checked, or as it was before."""
        target = Path(to)
        part = target.with_name(f"{target.name}.part")
        file = await asyncio.to_thread(part.open, "wb")
        try:
            with file:
                await self._write(artifact_id, file)
            await asyncio.to_thread(part.replace, target)
        finally:
            part.unlink(missing_ok=True)
        return target

    async def _send_whole(
        self, source: bytes | Path, query: Query, headers: dict[str, str]
    ) -> httpx2.Response:
        async def send() -> httpx2.Response:
            content = source if isinstance(source, bytes) else _read_file(source)
            return await self._caller.send(self._request(query, headers, content))

        patience = Patience(self._caller.patience, begun=False)
        return await self._caller.try_until(patience, send, Changes(headers))

    async def _send_once(
        self,
        source: Iterable[bytes] | AsyncIterable[bytes],
        query: Query,
        headers: dict[str, str],
    ) -> httpx2.Response:
        request, changes = self._request(query, headers, _pieces_of(source)), Changes(headers)
        try:
            answer = await self._caller.send(request)
        except httpx2.TransportError as error:
            raise changes.after_a_break(self._caller.unreachable(error), error) from error
        if not answer.is_success:
            raise changes.after_an_answer(error_of(answer), answer.status_code)
        return answer

    def _request(self, query: Query, headers: dict[str, str], content: Content) -> httpx2.Request:
        return self._caller.request("POST", path_of("artifacts"), query, headers, content)

    async def _write(self, artifact_id: str, file: BinaryIO) -> None:
        async with aclosing(self.content(artifact_id)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)


class _Download:
    """The bytes of one artifact, over as many connections as it takes."""

    def __init__(self, caller: Caller, artifact: Artifact) -> None:
        self._caller = caller
        self._artifact = artifact
        self._trying = Patience(caller.patience, begun=False)
        self._at = 0

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        while self._at < self._artifact.size:
            failure: EarnestError = Unreachable("the download ended before its end")
            wait = 0.0
            try:
                async for piece in self._rest():
                    self._at += len(piece)
                    self._trying.renew()
                    yield piece
            except httpx2.TransportError as error:
                failure = self._caller.unreachable(error)
            except EarnestError as error:
                if error.status not in AGAIN:
                    raise
                failure, wait = error, error.fields.get("retry_after", 0.0)
            if self._at < self._artifact.size:
                await self._trying.pause(failure, wait)

    async def _rest(self) -> AsyncIterator[bytes]:
        artifact, headers = self._artifact, {"Accept": "*/*", "Accept-Encoding": "identity"}
        if self._at:
            headers |= {"Range": f"bytes={self._at}-", "If-Range": f'"{artifact.sha256}"'}
        path = path_of("artifacts", artifact.id, "content")
        async with self._caller.opened(path, headers=headers) as answer:
            if self._at and answer.status_code != 206:
                raise DownloadDamaged(f"the server does not go on at byte {self._at}; try again")
            async for piece in answer.aiter_raw():
                yield piece


def _measured(source: bytes | Path) -> dict[str, str]:
    """The headers that say how long the bytes are, and which."""
    length, digest = _counted(source)
    shown = base64.b64encode(digest).decode()
    return {"Content-Length": str(length), "Content-Digest": f"sha-256=:{shown}:"}


def _counted(source: bytes | Path) -> tuple[int, bytes]:
    if isinstance(source, bytes):
        return len(source), hashlib.sha256(source).digest()
    try:
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            return file.tell(), digest
    except OSError as error:
        raise InvalidRequest(f"{source} cannot be read: {error.strerror}") from error


async def _read_file(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    with file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


async def _pieces_of(source: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """What a plain iterator gives is asked for in threads: it may wait."""
    if isinstance(source, AsyncIterable):
        async for piece in source:
            yield piece
        return
    pieces = iter(source)

    def following() -> bytes | None:
        return next(pieces, None)

    while (more := await asyncio.to_thread(following)) is not None:
        yield more
