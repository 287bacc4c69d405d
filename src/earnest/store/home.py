"""The home folder: where it is, how folders in it are made, and what is wrong with it.

Folders are made for their owner alone. A folder that was there before is used as it is: its mode
and owner are never changed. What lies inside the home is the business of those who keep it there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_data_dir

from earnest.domain.errors import HomeUnusable

OTHERWISE = "choose another home with EARNEST_HOME, or give EARNEST_DATABASE_URL"
"""What to do when a home cannot be used; ends the line of each such error."""

MADE_HERE = ".made-by-earnest"
"""The mark that `make` leaves for root."""


def default_home() -> Path:
    """EARNEST_HOME; without it /var/lib/earnest for root, else the user's data folder."""
    if chosen := os.environ.get("EARNEST_HOME"):
        return Path(chosen).expanduser()
    if os.geteuid() == 0:
        return Path("/var/lib/earnest")
    return Path(user_data_dir("earnest"))


@contextmanager
def checked(home: Path) -> Iterator[None]:
    """Turn what the system refuses inside this block into one line about the home."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        where = error.filename or home
        raise HomeUnusable(
            f"home {home} cannot be used by uid {os.geteuid()} ({where}: {reason}); {OTHERWISE}"
        ) from error


def make(folder: Path) -> None:
    """Make `folder` and its missing parents, each with mode 0700.

    For root each gets a mark, so that `let_through` can tell them from folders of others.
    """
    if folder.is_dir():
        return
    make(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():  # else another process has just made it
            raise HomeUnusable(f"{folder} is not a folder; {OTHERWISE}") from None
        return
    if os.geteuid() == 0:
        (folder / MADE_HERE).touch(mode=0o600)


def require_folder(folder: Path) -> None:
    """Refuse a place where something else stands, at its end or on the way; missing is fine."""
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise HomeUnusable(f"{place} is not a folder; {OTHERWISE}")
            return


def let_through(folder: Path, group: int) -> None:
    """As root: let `group` pass through `folder` and its parents, as far as Earnest made them."""
    for place in (folder, *folder.parents):
        if _made_here(place):
            os.chown(place, -1, group)
            place.chmod(0o710)


def _made_here(folder: Path) -> bool:
    try:
        return (folder / MADE_HERE).lstat().st_uid == folder.lstat().st_uid == 0
    except OSError:
        return False


def require_private(folder: Path, owners: set[int]) -> None:
    """Refuse a folder that somebody else owns or may enter: what lies in it may be forged."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid not in owners or seen.st_mode & 0o077:
        raise HomeUnusable(f"{folder} must be a folder that only its owner may enter; remove it")


def give(path: Path, owner: int) -> None:
    """Hand `path` itself, not what it may link to, to `owner`; nothing happens if it has it."""
    if path.lstat().st_uid != owner:
        os.chown(path, owner, owner, follow_symlinks=False)


def give_all(folder: Path, owner: int) -> None:
    """Hand `folder` and all that is in it to `owner`."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            give(Path(place, name), owner)
    give(folder, owner)


def write_whole(path: Path, text: str, *, mode: int, group: int) -> None:
    """Replace `path` in one step by a file with this text, so that nobody reads half of it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(text)
        os.fchown(file, -1, group)
        os.fchmod(file, mode)
    new.replace(path)
