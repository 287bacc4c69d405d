"""The embedded PostgreSQL: one server for a home, shared by all processes that use the home.

Each user of a home holds a share of the lock `users` from `start` to `stop`; the kernel frees it
however the process ends, so a killed process is never counted. Whoever starts, revives or stops
the server holds the lock `gate` alone meanwhile. The server is no child of its starter: it lives
on when that is killed, the next user finds it, and the last user to leave stops it. Whether it
runs is asked by connecting; a number in a lock file proves nothing.

Calls block (up to minutes while a database recovers); async callers use `asyncio.to_thread`.
Nothing stops by itself when the process ends: call `stop`, or use `with`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal
from urllib.parse import quote

from earnest.domain.errors import DatabaseUnavailable
from earnest.store import home as folders
from earnest.store import postgres_binaries, postmaster
from earnest.store.file_lock import FileLock
from earnest.store.home import default_home
from earnest.store.patience import Patience, Say
from earnest.store.postgres_binaries import Binaries, Programs, RootMode
from earnest.store.postgres_folder import NAME, PostgresFolder, last_lines

__all__ = ["EmbeddedPostgres", "Started", "default_home"]

How = Literal["started", "adopted"]

_ACCEPTS, _REFUSES = 0, 1  # what pg_isready returns; the rest means that nobody answered
_LEFTOVER = re.compile(r"pre-existing shared memory block|lock file .* already exists")


@dataclass(frozen=True)
class Started:
    """The server is there.

    `url` is for asyncpg. `how` tells whether this call brought it up. `alone`: when this start
    joined the users there surely was no other one, so whatever an earlier life of the service
    held in the database is nobody's any more. (Who uses the socket by its URL is not counted.)
    """

    url: str
    how: How
    alone: bool


class EmbeddedPostgres:
    """The PostgreSQL server of one home; this object is one of its users.

    `settings` are the server's, if it is started from here. `bin_dir` has the programs of another
    PostgreSQL of version `major`. `root_mode` (or EARNEST_ROOT_MODE) fixes how root runs the
    programs and `copies` where a copy of them goes, see `postgres_binaries`. `say` gets a line
    now and then while something takes long.

    Raises `HomeUnusable` or `DatabaseUnavailable`: one line that says what to do.
    """

    def __init__(
        self,
        home: Path,
        *,
        major: int = 18,
        settings: Mapping[str, str] = MappingProxyType({}),
        bin_dir: Path | None = None,
        root_mode: RootMode | None = None,
        copies: Path = postgres_binaries.COPIES,
        say: Say | None = None,
    ) -> None:
        self._folder = PostgresFolder(home, major, settings)
        self._binaries = Binaries(major, bin_dir, root_mode, copies)
        self._say: Say = say or (lambda _: None)
        self._users: FileLock | None = None

    @property
    def url(self) -> str:
        """Where to connect, whether or not the server runs."""
        place = quote(str(self._folder.sockets))
        return f"postgresql://{NAME}@/{NAME}?host={place}&port={postmaster.PORT}"

    @property
    def is_new(self) -> bool:
        """Whether the home has no database yet. Raises `HomeUnusable` where it could have none."""
        with folders.checked(self._folder.home):
            folders.require_folder(self._folder.home)
            return self._folder.is_new

    def start(self) -> Started:
        """Join the users of the home and see to it that the server answers.

        A second call keeps this user's place and does what `ensure_running` does.
        """
        with folders.checked(self._folder.home):
            self._folder.make()
            with self._gate():
                return self._join() if self._users is None else self._found(alone=False)

    def ensure_running(self) -> Started:
        """Bring the server back if it has gone; several processes may call this at once."""
        if self._users is None:
            raise DatabaseUnavailable("the embedded PostgreSQL was not started here; start it")
        return self.start()

    def stop(self) -> Literal["stopped", "left running"]:
        """Leave the users; the last one stops the server. Without a start nothing happens."""
        if self._users is None:
            return "left running"
        with folders.checked(self._folder.home), self._gate():
            users, self._users = self._users, None
            with closing(users):
                if not users.try_exclusive():
                    return "left running"
                self._shut_down()
                return "stopped"

    def alive(self) -> bool:
        """Whether the server accepts connections now."""
        return self._ask() == _ACCEPTS

    def __enter__(self) -> Started:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @contextmanager
    def _gate(self) -> Iterator[None]:
        with closing(FileLock(self._folder.path / "gate")) as gate:
            patience = Patience(self._say)
            while not gate.try_exclusive():
                patience.step("another process starts or stops the database of this home", 300)
            yield

    def _join(self) -> Started:
        users = FileLock(self._folder.path / "users")
        try:
            found = self._found(alone=users.try_exclusive())
            users.share()
        except BaseException:
            users.close()
            raise
        self._users = users
        return found

    def _found(self, *, alone: bool) -> Started:
        self._folder.require_fit()
        return Started(self.url, self._bring_up(), alone)

    def _bring_up(self) -> How:
        how: How = "adopted"
        patience = Patience(self._say)
        while (answer := self._ask()) != _ACCEPTS:
            reason, limit = self._why_to_wait(answer)
            if reason is None:
                reason, limit = self._launch(), 30
                how = how if reason else "started"
            patience.step(f"{reason or 'the server starts'}; see {self._folder.log}", limit)
        return how

    def _ask(self) -> int:
        words = ("-q", "-t", "3", "-U", NAME, "-d", NAME, "-p", str(postmaster.PORT))
        programs = Programs(self._binaries.folder)
        return programs.run("pg_isready", *words, "-h", self._folder.sockets).returncode

    def _why_to_wait(self, answer: int) -> tuple[str | None, float]:
        """What a server that lives is doing, and how many seconds that may take."""
        if answer == _REFUSES:
            return "the database recovers or shuts down", 600
        if postmaster.living(self._folder.data):
            return "the database server does not answer", 30
        return None, 0

    def _launch(self) -> str | None:
        """Start the server; a text says why that has to be tried again in a while."""
        programs = self._prepare()
        known = self._folder.log.stat().st_size
        words = ("-w", "-t", "5", "-D", self._folder.data, "-l", self._folder.log)
        outcome = programs.run("pg_ctl", "start", *words)
        if outcome.returncode == 0 or postmaster.living(self._folder.data):
            return None
        said = _since(self._folder.log, known) or outcome.stdout
        if _LEFTOVER.search(said):
            return "remains of a killed database server are in the way"
        raise DatabaseUnavailable(
            f"the database does not start: {last_lines(said)}; see {self._folder.log}"
        )

    def _prepare(self) -> Programs:
        """The folder made ready for a start, and the programs that can work on it."""
        folder = self._folder
        programs = self._binaries.programs(folder.path, folder.owner)
        if folder.is_new:
            self._say("making the database of this home, once")
            folder.create(programs)
        folder.make_ready(programs)
        return programs

    def _shut_down(self) -> None:
        if not postmaster.stop(self._folder.data, timeout=120):
            raise DatabaseUnavailable(
                f"the database has not stopped in 120 s; see {self._folder.log}"
            )
        self._folder.remove_outer_sockets()


def _since(log: Path, size: int) -> str:
    with log.open("rb") as file:
        file.seek(size)
        return file.read(100_000).decode(errors="replace")
