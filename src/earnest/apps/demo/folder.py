"""The demo's folder: what it keeps there, and that only one demo uses it at a time.

demo.json        where everything is, and the tokens; there only while the demo is ready
demo-tokens.json the tokens, kept from one start to the next (the database has only hashes)
earnest.env      lets commands find the demo's app and scope by the folder alone
logs/            what its processes log
.earnest-demo    the mark of a folder that is the demo's; it uses no folder of others
demo.lock        held by the demo that runs
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from earnest.domain.errors import HomeUnusable
from earnest.store import home as folders
from earnest.store.embedded import EmbeddedPostgres
from earnest.store.file_lock import FileLock

Tokens = dict[str, dict[str, str]]
"""The tokens of each scope, by principal."""

_MARK = ".earnest-demo"
_OURS = ("demo.json", "demo-tokens.json", "earnest.env", "logs", "postgres", "artifacts")
_LOG_BYTES = 10_000_000


class DemoFolder:
    """One folder; use it inside `held` and `begun`."""

    def __init__(self, home: Path) -> None:
        self.home = Path(os.path.abspath(home.expanduser()))  # noqa: PTH100 - links stay as given
        self.logs = self.home / "logs"
        self.was_killed = False

    @property
    def is_new(self) -> bool:
        """Whether no demo has used it yet. Raises `HomeUnusable` for a folder of others."""
        with folders.checked(self.home):
            self._require_ours()
            return not (self.home / _MARK).exists()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder if it is new and holds it alone. Raises `HomeUnusable`; a folder of
        others stays untouched. Loose files, such as the log of who starts the demo, may lie there.
        """
        with folders.checked(self.home):
            self._require_ours()
            folders.make(self.home)
            (self.home / _MARK).touch(mode=0o600)
            lock = FileLock(self.home / "demo.lock")
        with closing(lock):
            if not lock.try_exclusive():
                raise HomeUnusable(
                    f"another demo runs in {self.home}; stop it, or choose another folder "
                    "with --home"
                )
            self.was_killed = (self.home / "demo.json").exists()
            yield

    @contextmanager
    def begun(self, *, fresh: bool = False) -> Iterator[None]:
        """Ready for the processes; `fresh`: emptied before. Nothing says that the demo is ready,
        before and after."""
        with folders.checked(self.home):
            self.withdraw()
            if fresh:
                self._wipe()
            folders.make(self.logs)
        yield
        self.withdraw()

    def publish(self, facts: Mapping[str, Any]) -> None:
        """Says that the demo is ready, where, and with which processes."""
        self._write("demo.json", json.dumps(facts, indent=2) + "\n")

    def withdraw(self) -> None:
        (self.home / "demo.json").unlink(missing_ok=True)

    def tokens(self) -> Tokens:
        """The tokens of an earlier start; empty when there was none."""
        try:
            kept: Tokens = json.loads((self.home / "demo-tokens.json").read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return kept

    def keep_tokens(self, tokens: Tokens) -> None:
        self._write("demo-tokens.json", json.dumps(tokens, indent=2) + "\n")

    def keep_variables(self, variables: Mapping[str, str]) -> None:
        lines = [f"{name}={value}\n" for name, value in variables.items()]
        self._write("earnest.env", "".join(lines))

    def log(self, name: str) -> Path:
        """Where a process logs; begun anew when it has become large."""
        path = self.logs / f"{name}.log"
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.unlink()
        return path

    def _write(self, name: str, text: str) -> None:
        with folders.checked(self.home):
            folders.write_whole(self.home / name, text, mode=0o600, group=-1)

    def _require_ours(self) -> None:
        folders.require_folder(self.home)
        if not self.home.exists() or (self.home / _MARK).exists():
            return
        if any(one.is_dir() or one.name in _OURS for one in self.home.iterdir()):
            raise HomeUnusable(
                f"{self.home} is in use and was not made by the demo, which leaves it alone; "
                "choose another folder with --home"
            )

    def _wipe(self) -> None:
        if (self.home / "postgres").exists():
            self._stop_database()
        for name in _OURS:
            place = self.home / name
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink(missing_ok=True)

    def _stop_database(self) -> None:
        """A killed demo leaves the server running."""
        server = EmbeddedPostgres(self.home)
        server.start()
        if server.stop() == "left running":
            raise HomeUnusable(
                f"other processes still use the database in {self.home}; stop them before --fresh"
            )
