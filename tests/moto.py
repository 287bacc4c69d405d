"""A real S3 server of one's own: moto, in a process that can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx2

from earnest.store.blobs_bucket import BucketBlobs, open_bucket

_LONGEST_START = 60.0  # seconds

NAMES = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


class Moto:
    """What it holds is lost with its process."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Moto:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + _LONGEST_START
        while not self._answers():
            assert time.monotonic() < until, "moto did not start"
        return self

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def bucket(self, name: str, prefix: str = "files") -> BucketBlobs:
        """An empty bucket, as `EARNEST_ARTIFACTS` would name it."""
        httpx2.put(f"{self.url}/{name}").raise_for_status()
        with environment(**NAMES, AWS_ENDPOINT_URL=self.url):
            return open_bucket(f"s3://{name}/{prefix}")

    def parts_left(self, name: str) -> str:
        """What the server says of uploads that are neither completed nor aborted."""
        return httpx2.get(f"{self.url}/{name}?uploads").text

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/moto-api/", timeout=1).is_success
        except httpx2.TransportError:
            return False


@contextlib.contextmanager
def environment(**names: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
