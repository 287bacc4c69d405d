"""Files through a real server: large ones, broken-off ones, damaged ones."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from earnest.domain.artifact import PIECE_BYTES
from earnest.engine.process.engine import Engine
from earnest.store.blobs_folder import FolderBlobs
from tests.engine.filing import blobs, files
from tests.moto import NAMES, Moto

_LONGEST_WAIT = 60.0
_SERVER = """
import asyncio, sys
from pathlib import Path
from earnest.doors.api.application import build_api
from earnest.doors.api.serving import serve
from earnest.engine.inspection.readiness import Readiness
from earnest.engine.process.engine import Engine
from earnest.store.blobs import open_blobs
from earnest.store.database import Database

async def main():
    async with Database(sys.argv[1]) as database:
        engine = Engine(database)
        engine.blobs = open_blobs(sys.argv[2], Path("unused"))
        app = build_api(engine, ready=lambda: Readiness(True))
        await serve(app, "127.0.0.1", 0, ready=lambda url: print(url, flush=True))

asyncio.run(main())
"""


@dataclass
class Server:
    url: str
    process: asyncio.subprocess.Process
    token: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def memory(self) -> int:
        """The most bytes that were ever in its memory at once."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM")]
        return int(peak) * 1024

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, headers=self.headers, timeout=_LONGEST_WAIT)

    async def raw(
        self, head: str, body: bytes
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request as its bytes; `head` are its own headers."""
        address, _, port = self.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        writer.write(
            f"POST /v1/artifacts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"{head}\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def serving(
    engine: Engine, token: str, place: str, **variables: str
) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVER, engine.database.url, place,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, **variables},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _LONGEST_WAIT)
        yield Server(line.decode().strip(), process, token)
    finally:
        process.kill()
        await process.wait()


@pytest.fixture
def place(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "artifacts")


@pytest.fixture
async def server(
    engine: Engine, tokens: dict[str, str], place: FolderBlobs
) -> AsyncIterator[Server]:
    async with serving(engine, tokens["member"], str(place.root)) as started:
        yield started


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    started = Moto().start()
    yield started
    started.kill()


class Large:
    """A large file that nobody holds as a whole."""

    def __init__(self, pieces: int) -> None:
        self.size = pieces * PIECE_BYTES
        self._pieces = pieces
        self._piece = os.urandom(PIECE_BYTES)
        self.sha256 = hashlib.sha256()

    async def chunks(self) -> AsyncIterator[bytes]:
        for number in range(self._pieces):
            chunk = number.to_bytes(8, "big") + self._piece[8:]
            self.sha256.update(chunk)
            yield chunk


async def there_and_back(server: Server, large: Large) -> None:
    async with server.client() as client:
        small = await client.post("/v1/artifacts", content=bytes(3 * PIECE_BYTES))
        await client.get(small.json()["links"]["content"])
        before = server.memory()
        answer = await client.post("/v1/artifacts", content=large.chunks())
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert (made["size"], made["sha256"]) == (large.size, large.sha256.hexdigest())
        got = hashlib.sha256()
        async with client.stream("GET", made["links"]["content"]) as download:
            async for chunk in download.aiter_bytes():
                got.update(chunk)
        assert got.hexdigest() == made["sha256"]
    assert server.memory() - before < 80 * 1024 * 1024


@pytest.mark.slow
async def test_memory_stays_flat_however_large_the_file(server: Server) -> None:
    await there_and_back(server, Large(200))


@pytest.mark.slow
async def test_memory_stays_flat_with_a_bucket_too(
    engine: Engine, tokens: dict[str, str], moto: Moto
) -> None:
    moto.bucket("large")
    variables = {**NAMES, "AWS_ENDPOINT_URL": moto.url}
    async with serving(engine, tokens["member"], "s3://large/files", **variables) as server:
        await there_and_back(server, Large(200))


async def nothing_left(engine: Engine, place: FolderBlobs) -> None:
    """Returns when the server has taken away what it had begun."""
    async with asyncio.timeout(_LONGEST_WAIT):
        while files(place) or await blobs(engine):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_upload_that_is_broken_off_leaves_nothing(
    server: Server, engine: Engine, place: FolderBlobs
) -> None:
    _, writer = await server.raw("Content-Length: 9000000", bytes(5_000_000))
    async with asyncio.timeout(_LONGEST_WAIT):
        while not files(place):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with server.client() as client:
        assert (await client.get("/v1/artifacts")).json()["items"] == []
    writer.close()
    await nothing_left(engine, place)
    async with server.client() as client:
        assert (await client.get("/v1/artifacts")).json()["items"] == []
        assert (await client.post("/v1/artifacts", content=b"x")).status_code == 201


async def test_what_is_announced_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    head = "Content-Length: 999999999999\r\nExpect: 100-continue"
    reader, writer = await server.raw(head, b"")
    line = await asyncio.wait_for(reader.readline(), _LONGEST_WAIT)
    assert b" 413 " in line
    writer.close()


async def test_a_download_that_turns_out_damaged_does_not_end_well(
    server: Server, place: FolderBlobs
) -> None:
    async with server.client() as client:
        made = (await client.post("/v1/artifacts", content=bytes(8 * PIECE_BYTES))).json()
        (file,) = files(place)
        damaged = bytearray(8 * PIECE_BYTES)
        damaged[6 * PIECE_BYTES] = 1
        file.write_bytes(damaged)
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(made["links"]["content"])
        part = {"Range": f"bytes=0-{6 * PIECE_BYTES - 1}"}
        assert (await client.get(made["links"]["content"], headers=part)).status_code == 206


async def test_a_bucket_that_goes_away_is_busy_and_nothing_is_half_done(
    engine: Engine, tokens: dict[str, str]
) -> None:
    moto = Moto().start()
    moto.bucket("gone")
    variables = {**NAMES, "AWS_ENDPOINT_URL": moto.url}
    async with (
        serving(engine, tokens["member"], "s3://gone", **variables) as server,
        server.client() as client,
    ):
        kept = (await client.post("/v1/artifacts", content=b"kept")).json()

        async def source() -> AsyncIterator[bytes]:
            for number in range(24):
                if number == 12:
                    moto.kill()
                yield bytes(PIECE_BYTES)

        answer = await client.post("/v1/artifacts", content=source())
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert answer.headers["retry-after"]
        assert moto.url not in answer.text
        assert (await client.get(kept["links"]["content"])).status_code == 503
        assert (await client.get("/v1/artifacts")).json()["items"] == [kept]
        states = await blobs(engine)
        assert states.pop("stored") == 1
        assert set(states) <= {"discarded"}, "its parts are taken away when the bucket is back"
        moto.start()
        moto.bucket("gone")
        assert (await client.post("/v1/artifacts", content=b"again")).status_code == 201
    moto.kill()
