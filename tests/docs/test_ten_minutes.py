"""The ten minutes, from an empty folder to its end: the wheel is installed as the page says, the
worker is killed as the page says, and the bank's books are counted (P2, P3)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest

from tests.docs.guides import Guide, reading
from tests.testing.test_example_project import environment, run

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("example")]


class Reader:
    """Somebody who follows the page in a folder, with three terminals and a port of their own: the
    one of the page may be taken on this machine."""

    def __init__(self, guide: Guide, folder: Path, port: int, constraint: Path) -> None:
        self.guide = guide
        self.folder = folder
        self.port = str(port)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # What `pip install earnest` gets is this tree, built.
        told = {"PATH": path, "PIP_CONSTRAINT": str(constraint), "COLUMNS": "200"}
        self.environment = {**environment(), **told}

    def text(self, name: str) -> str:
        return self.guide.text(name).replace("8399", self.port)

    def say(self, name: str, *changed: tuple[str, str], first: str = "") -> str:
        """A command of the page; what it prints."""
        words = ["sh", "-ec", first + _with(self.text(name), *changed)]
        answer = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def say_in_third(self, name: str, *changed: tuple[str, str]) -> str:
        return self.say(name, *changed, first=self.guide.text("each.sh"))

    def say_until(self, name: str, there: str) -> str:
        """Again and again, as people do who wait for something; its last output."""
        until = time.monotonic() + 60
        while there not in (told := self.say_in_third(name)):
            assert time.monotonic() < until, told
        return told

    def books(self) -> list[Any]:
        items = json.loads(self.say_in_third("books.sh"))["items"]
        return [item["request"]["order_id"] for item in items]


def _with(text: str, *changed: tuple[str, str]) -> str:
    for old, new in changed:
        assert old in text, f"the page has no {old!r} there any more"
        text = text.replace(old, new)
    return text


class Terminal:
    """A command of the page that stays, in the foreground of a terminal of its own."""

    def __init__(self, reader: Reader, name: str) -> None:
        words = ["sh", "-ec", f"{reader.guide.text('each.sh')}\nexec {reader.text(name)}"]
        self.process = subprocess.Popen(
            words, cwd=reader.folder, env=reader.environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.out: IO[str] = self.process.stdout
        self.ready = self.out.readline()
        assert "ready" in self.ready, self.ready

    def interrupt(self) -> None:
        """Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.out.close()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.interrupt()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.fixture
def constraint(tmp_path: Path) -> Path:
    """Makes pip take this tree, built as for users, for `earnest`."""
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("earnest-*.whl")
    made = tmp_path / "constraint.txt"
    made.write_text(f"earnest @ {wheel.as_uri()}\n", encoding="utf-8")
    return made


@pytest.fixture
def reader(tmp_path: Path, constraint: Path, free_port: int) -> Iterator[Reader]:
    folder = tmp_path / "empty"
    folder.mkdir()
    with reading("ten-minutes") as guide:
        yield Reader(guide, folder, free_port, constraint)


def test_the_guide(reader: Reader) -> None:
    reader.say("install.sh")
    write(reader, "shop.py", "shop.py")
    with Terminal(reader, "bank.sh"), ExitStack() as second:
        worker = second.enter_context(Terminal(reader, "worker.sh"))
        assert same(reader.guide.text("ready.txt")) == same(worker.ready)
        assert "succeeded" in reader.say_in_third("refund.sh")
        assert "succeeded" in reader.say_in_third("refund.sh")
        assert reader.books() == [17]
        worker = second.enter_context(kill_in_the_middle(reader, worker))
        assert "succeeded" in reader.say_in_third("watch.sh")
        assert reader.books() == [17, 18]
        write(reader, "shop-continued.py", "shop.py")
        worker.interrupt()
        second.enter_context(Terminal(reader, "worker.sh"))
        settle_what_nobody_knows(reader)
        assert reader.books() == [17, 18, 19]


def write(reader: Reader, name: str, file: str) -> None:
    with (reader.folder / file).open("a", encoding="utf-8") as out:
        out.write(reader.text(name))


def kill_in_the_middle(reader: Reader, worker: Terminal) -> Terminal:
    """P2: and the bank goes through with it when the worker is already dead."""
    reader.say_in_third("slow.sh")
    reader.say_in_third("second.sh")
    shown = reader.say_until("operations.sh", "submitting")
    assert same(reader.guide.text("submitting.txt")) == same(shown)
    (number,) = re.findall(r"\d+", reader.guide.text("kill.sh").replace("-9", ""))
    reader.say_in_third("kill.sh", (number, str(worker.process.pid)))
    assert worker.process.wait(10) == -signal.SIGKILL
    assert reader.books() == [17], "the worker was to die before the bank is done"
    return Terminal(reader, "worker.sh")


def settle_what_nobody_knows(reader: Reader) -> None:
    """P3."""
    reader.say_in_third("drop.sh")
    reader.say_in_third("third.sh")
    shown = reader.say_until("unknown.sh", "unknown")
    assert same(reader.guide.text("unknown.txt")) == same(shown)
    (here,) = re.findall(r"op_\w{26}", shown)
    (told,) = re.findall(r"op_\w{26}", reader.text("unknown.txt"))
    assert "submitted" in reader.say_in_third("resolve.sh", (told, here))
    assert "succeeded" in reader.say_in_third("end.sh")


def same(shown: str) -> str:
    """What is printed, without what differs from time to time."""
    shown = re.sub(r"\b(op|run)_\w{26}", r"\1", shown)
    shown = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*", "time", shown)
    return " ".join(re.sub(r"pid \d+", "pid", shown).split())
