"""A process that uses an embedded PostgreSQL, and how a test talks to it.

Run as a program it starts the database, prints what it found as one line of JSON, and then does
for each line of its input the method of that name, until the input ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from earnest.domain.errors import EarnestError
from earnest.store.embedded import EmbeddedPostgres

QUICK = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "20"}


class User:
    """The process, seen from the test; `uid` makes it run as another user."""

    def __init__(self, home: Path, **options: Any) -> None:
        wanted = {"home": str(home), "settings": QUICK, **options}
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(wanted)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started = self.receive()

    def ask(self, method: str) -> Any:
        self.send(method)
        return self.receive()

    def send(self, method: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(method + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL; returns when its output has ended, so nobody else may hold that open."""
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.communicate(timeout=20)


def _drop_to(uid: int) -> None:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def _reply(database: EmbeddedPostgres, method: str) -> None:
    try:
        answer = getattr(database, method)()
    except EarnestError as error:
        answer = error.as_json()
    if dataclasses.is_dataclass(answer):
        answer = vars(answer)
    print(json.dumps(answer), flush=True)


def main(wanted: dict[str, Any]) -> None:
    if uid := wanted.pop("uid", None):
        _drop_to(uid)
    for name in {"home", "bin_dir"} & wanted.keys():
        wanted[name] = Path(wanted[name])
    database = EmbeddedPostgres(**wanted)
    _reply(database, "start")
    for line in sys.stdin:
        _reply(database, line.strip())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
