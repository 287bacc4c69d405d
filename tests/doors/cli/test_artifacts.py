"""`earnest artifacts`: files in and out, what may be taken away, and the room of a scope."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import typer

from earnest.doors.cli.artifacts import read_size
from tests.doors.cli.program import Program

DATA = bytes(range(256)) * 5_000


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "cat.png"
    file.write_bytes(DATA)
    return file


def test_a_file_goes_in_and_comes_out_as_it_was(here: Program, picture: Path) -> None:
    made = here.good("artifacts", "put", str(picture), "--json").json
    assert (made["name"], made["media_type"], made["size"]) == ("cat.png", "image/png", len(DATA))
    assert made["sha256"] == hashlib.sha256(DATA).hexdigest()
    listed = here.good("artifacts", "list", "--json").json["items"]
    assert listed == [made]
    assert made["id"] in here.good("artifacts", "list").out
    assert here.good("artifacts", "show", made["id"], "--json").json == made
    assert "cat.png" in here.good("artifacts", "show", made["id"]).out
    out = picture.with_name("out.png")
    here.good("artifacts", "get", made["id"], "--out", str(out))
    assert out.read_bytes() == DATA
    assert not list(out.parent.glob(".*.part"))


def test_a_file_that_is_there_is_replaced_only_when_told_to(here: Program, picture: Path) -> None:
    made = here.good("artifacts", "put", str(picture), "--json").json
    picture.write_bytes(b"mine")
    line = here.refused(1, "artifacts", "get", made["id"], "--out", str(picture))
    assert "add --yes" in line
    assert picture.read_bytes() == b"mine"
    here.good("artifacts", "get", made["id"], "--out", str(picture), "--yes")
    assert picture.read_bytes() == DATA


def test_a_damaged_file_replaces_nothing(here: Program, picture: Path) -> None:
    made = here.good("artifacts", "put", str(picture), "--json").json
    (stored,) = [one for one in (here.folder / "home" / "artifacts").rglob("*") if _is_blob(one)]
    stored.write_bytes(DATA[:-1] + b"x")
    line = here.refused(1, "artifacts", "get", made["id"], "--out", str(picture), "--yes")
    assert "damaged" in line
    assert picture.read_bytes() == DATA
    found = here.run("doctor", "--json").json["checks"]
    (bytes_of_artifacts,) = [one for one in found if one["check"] == "artifact bytes"]
    assert bytes_of_artifacts["level"] == "ok"  # as long as it was: only its reader can tell
    stored.unlink()
    found = here.run("doctor", "--json").json["checks"]
    (bytes_of_artifacts,) = [one for one in found if one["check"] == "artifact bytes"]
    assert bytes_of_artifacts["level"] == "bad"


def _is_blob(path: Path) -> bool:
    return path.is_file() and "belongs" not in path.name


def test_a_key_is_one_upload(here: Program, picture: Path) -> None:
    first = here.good("artifacts", "put", str(picture), "--key", "k", "--json").json
    assert here.good("artifacts", "put", str(picture), "--key", "k", "--json").json == first
    line = here.refused(1, "artifacts", "put", str(picture), "--key", "k", "--name", "dog.png")
    assert "another artifact" in line


def test_a_run_has_its_files(here: Program, picture: Path) -> None:
    run_id = here.good("runs", "submit", "demo.echo", '{"message": "x"}', "--json").json["id"]
    made = here.good("artifacts", "put", str(picture), "--run", run_id, "--json").json
    assert made["run_id"] == run_id
    assert here.good("artifacts", "list", "--run", run_id, "--json").json["items"] == [made]


def test_nothing_is_deleted_without_a_yes(here: Program, picture: Path) -> None:
    made = here.good("artifacts", "put", str(picture), "--json").json
    assert "add --yes" in here.good("artifacts", "delete", made["id"]).err
    here.good("artifacts", "show", made["id"])
    here.good("artifacts", "delete", made["id"], "--yes")
    assert "no such artifact" in here.refused(1, "artifacts", "show", made["id"])
    assert "no such artifact" in here.refused(1, "artifacts", "delete", made["id"], "--yes")


def test_bytes_that_nobody_knows_are_shown_and_then_taken_away(
    here: Program, picture: Path
) -> None:
    here.good("artifacts", "put", str(picture))
    place = here.folder / "home" / "artifacts"
    (stored,) = [one for one in place.rglob("*") if _is_blob(one)]
    name = "0" * 30 + stored.name[-2:]
    stored.with_name(name).write_bytes(b"left after a restore")
    asked = ("artifacts", "collect", "--unknown", "--older-than", "0s")
    told = here.good(*asked, "--json").json
    assert (told["unknown"], told["unknown_removed"]) == (1, 0)
    told = here.good(*asked, "--json", "--yes").json
    assert (told["unknown"], told["unknown_removed"]) == (1, 1)
    assert "unknown" in here.good(*asked).out
    assert [one for one in place.rglob("*") if _is_blob(one)] == [stored]


def test_a_scope_has_the_room_that_it_is_given(here: Program, picture: Path) -> None:
    here.good("artifacts", "put", str(picture))
    assert here.good("artifacts", "quota", "default", "1MB", "--json").json == {
        "scope_id": "default", "used_bytes": len(DATA), "quota_bytes": 1_000_000,
        "is_default": False,
    }  # fmt: skip
    picture.write_bytes(b"more")
    assert "has room for 1000000 bytes" in here.refused(1, "artifacts", "put", str(picture))
    found = here.run("doctor", "--json").json["checks"]
    (room,) = [one for one in found if one["check"] == "artifact room"]
    assert (room["level"], "earnest artifacts quota" in room["advice"]) == ("warn", True)
    (all_rooms,) = here.good("artifacts", "quota", "--json").json["items"]
    assert all_rooms["scope_id"] == "default"
    assert here.good("artifacts", "quota", "default", "default", "--json").json["is_default"]
    here.good("artifacts", "put", str(picture))
    assert "no scope" in here.refused(1, "artifacts", "quota", "nowhere", "5GB")


def test_a_place_that_cannot_be_used_is_told_by_doctor(here: Program) -> None:
    (here.folder / "file").touch()
    broken = here.on(EARNEST_ARTIFACTS=str(here.folder / "file" / "x"))
    found = broken.run("doctor", "--json").json["checks"]
    (storage,) = [one for one in found if one["check"] == "artifact storage"]
    assert storage["level"] == "bad"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("1kB", 1000), ("10GB", 10**10), ("2GiB", 2**31), ("3 MB", 3 * 10**6)],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GB", "1.5GB", "10XB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_size(text)


def test_bad_input_is_told_in_one_line(here: Program) -> None:
    assert "cannot be read" in here.refused(1, "artifacts", "put", "not-there.png")
    assert "is no size" in here.refused(2, "artifacts", "quota", "default", "much")
    setting = here.on(EARNEST_ARTIFACTS="gs://bucket").refused(2, "artifacts", "list")
    assert "s3://bucket/prefix" in setting
