"""The folder `postgres` of a home: whose it is, what is in it, how the data folder is made.

    data            the data folder, made under another name and then renamed
    run             the socket, unless the path is too long for one
    settings.conf   written anew before each start of the server
    server.log      what the server says
    gate, users     locks, see `embedded`

Starting and stopping the server is not done here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from earnest.domain.errors import DatabaseUnavailable, HomeUnusable
from earnest.store import home as folders
from earnest.store import postmaster
from earnest.store.postgres_binaries import NOBODY, Programs

NAME = "earnest"
"""The name of the database and of its owner."""

DEFAULTS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": str(postmaster.PORT),
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""The server's settings, before those of the caller."""

_SOCKET_PATH_BYTES = 100  # the kernel takes 107, macOS 103
_LOG_BYTES = 10_000_000
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \w+ \[\d+\] ")


class PostgresFolder:
    """What Earnest keeps of PostgreSQL in one home."""

    def __init__(self, home: Path, major: int, settings: Mapping[str, str]) -> None:
        self.home = _resolved(home)
        self.path = self.home / "postgres"
        self.data = self.path / "data"
        self.log = self.path / "server.log"
        self.sockets = _socket_folder(self.path)
        self._major = major
        self._settings = dict(settings)

    @property
    def owner(self) -> int | None:
        """The uid that owns the data folder; None if there is none yet."""
        return _owner(self.data)

    @property
    def is_new(self) -> bool:
        """Whether the data folder still has to be made."""
        return not self.data.exists() or not any(self.data.iterdir())

    def make(self) -> None:
        """Make the folder if it is missing; refuse one of somebody else before touching it."""
        _require_ours(self.path)
        folders.make(self.path)

    def require_fit(self) -> None:
        """Refuse what is not a data folder of this user and version, and a socket of others."""
        _require_ours(self.data)
        if not self.is_new:
            self._require_version()
        if os.path.lexists(self.sockets):
            folders.require_private(self.sockets, _our_uids())

    def create(self, programs: Programs) -> None:
        """Make the data folder with the database in it, whole or not at all."""
        new = self.path / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        folders.give(new, programs.owner)
        self._write_settings(programs)
        _require_success(programs.run("initdb", *self._initdb_words(), "-D", new))
        _append(new / "postgresql.conf", "\ninclude_if_exists = '../settings.conf'\n")
        statement = f"CREATE DATABASE {NAME};\n"
        outcome = programs.run("postgres", "--single", "-D", new, "postgres", text=statement)
        _require_success(outcome)
        new.rename(self.data)
        _sync(self.path)

    def make_ready(self, programs: Programs) -> None:
        """Before a start: the server's user owns what it must, nothing dead is in the way."""
        with suppress(FileExistsError):
            self.sockets.mkdir(mode=0o700)
        folders.require_private(self.sockets, _our_uids())
        folders.give(self.sockets, programs.owner)
        if self.owner != programs.owner:
            folders.give_all(self.data, programs.owner)
        postmaster.remove_dead_locks(self.data, self.sockets)
        self._write_settings(programs)
        _turn_log(self.log, programs.owner)

    def remove_outer_sockets(self) -> None:
        """After a stop: leave nothing in /tmp."""
        if self.sockets.parent != self.path:
            shutil.rmtree(self.sockets, ignore_errors=True)

    def _require_version(self) -> None:
        version = self.data / "PG_VERSION"
        if not version.exists():
            raise HomeUnusable(
                f"{self.data} is not empty and holds no PostgreSQL data; move it away, or "
                f"{folders.OTHERWISE}"
            )
        if (found := version.read_text().strip()) != str(self._major):
            raise HomeUnusable(
                f"{self.data} holds data of PostgreSQL {found}, and this is PostgreSQL "
                f"{self._major}; dump it with {found} and load it anew, or {folders.OTHERWISE}"
            )

    def _write_settings(self, programs: Programs) -> None:
        values = {**DEFAULTS, "unix_socket_directories": str(self.sockets), **self._settings}
        lines = [f"{name} = {_quoted(value)}\n" for name, value in values.items()]
        group = -1 if programs.uid is None else programs.uid
        path = self.path / "settings.conf"
        folders.write_whole(path, "".join(lines), mode=0o640, group=group)

    def _initdb_words(self) -> list[str]:
        words = ["-U", NAME, "-E", "UTF8", "--locale=C", "--no-instructions"]
        words += ["--auth-local=trust", "--auth-host=reject"]
        if self._major >= 17:
            words += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if self._settings.get("fsync") == "off":
            words += ["--no-sync"]
        return words


def _resolved(home: Path) -> Path:
    with folders.checked(home):
        try:
            path = home.resolve()
        except RuntimeError as error:  # Python before 3.13 on a loop of links
            raise HomeUnusable(f"{home}: {error}; {folders.OTHERWISE}") from error
    if set('"$`\\\n\r') & set(str(path)):  # pg_ctl hands the path to a shell
        raise HomeUnusable(f"home {str(path)!r} has a sign that shells change; choose another")
    return path


def _socket_folder(path: Path) -> Path:
    """In the home; or, if that cannot be a socket's path or part of a URL, in /tmp by a hash.

    It is always the same for a home: neither TMPDIR counts nor the folder of a login session,
    which goes with the session while the server stays.
    """
    folder = path / "run"
    fits = len(os.fsencode(folder / postmaster.SOCKET)) <= _SOCKET_PATH_BYTES
    if fits and re.fullmatch(r"[\w/.@+~ -]+", str(folder)):
        return folder
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:20]
    return Path("/tmp", f"earnest-{name}")  # noqa: S108 - see require_private


def _our_uids() -> set[int]:
    user = os.geteuid()
    return {user} if user else {0, NOBODY}


def _owner(folder: Path) -> int | None:
    try:
        return folder.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require_ours(folder: Path) -> None:
    owner = _owner(folder)
    if owner is not None and owner not in _our_uids():
        raise HomeUnusable(
            f"{folder} belongs to uid {owner}; run Earnest as that user, or {folders.OTHERWISE}"
        )


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _append(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(file, "a", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(file)


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _turn_log(log: Path, owner: int) -> None:
    """Make the log for the server's user; one that has grown large becomes `server.log.1`."""
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    log.touch(mode=0o600)
    folders.give(log, owner)


def _require_success(outcome: subprocess.CompletedProcess[str]) -> None:
    """A single-user server returns 0 whatever its statement met, so its words count too."""
    if outcome.returncode or re.search(r"\b(ERROR|FATAL|PANIC):", outcome.stdout):
        raise DatabaseUnavailable(f"cannot make the database: {last_lines(outcome.stdout)}")


def last_lines(text: str) -> str:
    """The last three lines that say something, as one line, without times and process ids."""
    lines = [_LOG_PREFIX.sub("", line).strip() for line in text.splitlines()]
    return " / ".join([line for line in lines if line][-3:]) or "no reason was given"
