"""Sealed secrets: opened with the key that sealed them, or one named after it (P21)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from earnest.domain.errors import SettingInvalid
from earnest.engine.process.sealing import FILE, Sealer, SecretSealed


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EARNEST_SECRET_KEY", raising=False)


def test_the_homes_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as many:
        sealed = list(many.map(lambda _: Sealer(tmp_path).seal("whsec_x"), range(8)))
    assert {Sealer(tmp_path).open(one) for one in sealed} == {"whsec_x"}
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / FILE).parent.glob("*.key*")] == [FILE.name]


def test_what_another_key_sealed_stays_sealed(tmp_path: Path) -> None:
    sealed = Sealer(tmp_path / "one").seal("whsec_x")
    with pytest.raises(SecretSealed, match="EARNEST_SECRET_KEY"):
        Sealer(tmp_path / "other").open(sealed)


def test_an_old_key_opens_and_the_first_one_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    monkeypatch.setenv("EARNEST_SECRET_KEY", old)
    sealed = Sealer().seal("whsec_x")
    monkeypatch.setenv("EARNEST_SECRET_KEY", f"{new}, {old}")
    both = Sealer()
    assert both.open(sealed) == "whsec_x"
    monkeypatch.setenv("EARNEST_SECRET_KEY", new)
    assert Sealer().open(both.seal("whsec_y")) == "whsec_y"


def test_a_key_that_is_none_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_SECRET_KEY", "hunter2")
    with pytest.raises(SettingInvalid) as refused:
        Sealer().seal("x")
    assert "hunter2" not in refused.value.detail
