"""Sealing: secrets that must be used again (to sign, to verify) are stored so that a copy of the
database tells nothing of them.

The key is EARNEST_SECRET_KEY: one key, or several separated by commas, of which the first one seals
and all open; without it, a file in the home that is made when it is first needed. Every process of
a deployment needs the same one. Source: Fernet (AES-128-CBC and HMAC-SHA256), of `cryptography`.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from earnest.domain.errors import EarnestError, SettingInvalid
from earnest.store import home as homes

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

VARIABLE = "EARNEST_SECRET_KEY"
FILE = Path("keys") / "secrets.key"

_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")


class SecretSealed(EarnestError):
    """A stored secret cannot be opened by this process."""

    code, status = "secret_sealed", 500


class Sealer:
    """Seals and opens for one process. `home` is where its key file is, if it needs one."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._box: MultiFernet | None = None

    def seal(self, text: str) -> bytes:
        """Raises `SettingInvalid` and `HomeUnusable` when there is no usable key."""
        return self._get_box().encrypt(text.encode())

    def open(self, sealed: bytes) -> str:
        """Raises `SecretSealed` for what was sealed with another key; else as `seal`."""
        from cryptography.fernet import InvalidToken

        try:
            return self._get_box().decrypt(sealed).decode()
        except InvalidToken:
            raise SecretSealed(
                f"the secret was sealed with another key: give every process the same {VARIABLE} "
                "(or home), and name old keys after the new one, separated by commas"
            ) from None

    def _get_box(self) -> MultiFernet:
        if self._box is None:
            from cryptography.fernet import Fernet, MultiFernet

            self._box = MultiFernet([Fernet(key) for key in self._keys()])
        return self._box

    def _keys(self) -> list[str]:
        if given := os.environ.get(VARIABLE):
            return _checked(given, VARIABLE)
        return _checked(_kept_in(self._home or homes.default_home()), str(FILE))


def _checked(text: str, where: str) -> list[str]:
    keys = [key.strip() for key in text.split(",")]
    if not all(_KEY.fullmatch(key) for key in keys):
        raise SettingInvalid(
            f"{where} is not a key: 32 random bytes in URL-safe base64 (44 characters), such as "
            "`openssl rand -base64 32 | tr '+/' '-_'` prints; several are separated by commas"
        )
    return keys


def _kept_in(home: Path) -> str:
    """The home's key. Of several processes that make it at once, one is first."""
    path = home / FILE
    with homes.checked(home):
        if not path.exists():
            homes.make(path.parent)
            _make(path)
        return path.read_text(encoding="ascii").strip()


def _make(path: Path) -> None:
    """The file is there as a whole or not at all."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(_new_key())
    with contextlib.suppress(FileExistsError):
        path.hardlink_to(own)
    own.unlink()


def _new_key() -> str:
    from cryptography.fernet import Fernet

    return Fernet.generate_key().decode()
