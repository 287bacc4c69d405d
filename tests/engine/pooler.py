"""A real PgBouncer before a test's database."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from earnest.store.database import ENGINE_SETTINGS

PROGRAM = Path("/usr/sbin/pgbouncer")
_SECONDS = 10.0

_SETTINGS = """
[databases]
{name} = host={host} port={port} user=earnest

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = {ignored}
"""


@contextmanager
def pooled(url: str, folder: Path, *, mode: str) -> Iterator[str]:
    """The database's address behind a pooler of this mode; settings of connections get lost in it,
    since the mode cannot keep them."""
    parts = urlsplit(url)
    place, name = parse_qs(parts.query), parts.path.strip("/")
    listen = _free_port()
    file = folder / f"pgbouncer-{mode}.ini"
    ignored = ",".join([*ENGINE_SETTINGS, "extra_float_digits"])
    file.write_text(
        _SETTINGS.format(name=name, host=place["host"][0], port=place["port"][0], listen=listen,
                         mode=mode, ignored=ignored),
        encoding="utf-8",
    )  # fmt: skip
    process = subprocess.Popen([*_as_somebody(), str(PROGRAM), "-q", str(file)])
    try:
        _wait_for(listen, process)
        yield f"postgresql://earnest@127.0.0.1:{listen}/{name}"
    finally:
        process.terminate()
        process.wait()


def _as_somebody() -> list[str]:
    """It refuses to run as root; the server's socket is open to root alone."""
    if os.geteuid() != 0:
        return []
    return ["unshare", "--user", "--map-user=65534", "--map-group=65534"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError("PgBouncer does not answer")
