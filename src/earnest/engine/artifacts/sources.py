"""Where a handler's bytes come from: it has them, in a file, or gives them one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

from earnest.domain.artifact import PIECE_BYTES
from earnest.domain.errors import InvalidRequest

Data = bytes | bytearray | memoryview | Path | AsyncIterable[bytes]


def chunks_of(data: Data) -> AsyncIterable[bytes]:
    """The bytes in chunks. Raises `InvalidRequest` for what holds no bytes."""
    if isinstance(data, bytes | bytearray | memoryview):
        return _given(bytes(data))
    if isinstance(data, Path):
        return _of_file(data)
    if isinstance(data, AsyncIterable):
        return data
    raise InvalidRequest(
        f"an artifact is made of bytes, a Path, or an async iterator of bytes, not of a "
        f"{type(data).__name__}; encode text first"
    )


async def _given(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _of_file(path: Path) -> AsyncIterator[bytes]:
    """Raises `OSError` like any reading of it."""
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while chunk := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield chunk
    finally:
        file.close()
