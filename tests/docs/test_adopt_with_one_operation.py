"""The guide to one operation inside FastAPI, Celery and Django: real servers and a real Celery
worker, killed while the bank works, and the bank's books counted (P2, P3, P7)."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from earnest.testing.simulator import Simulator
from tests.docs.guides import Guide, open_guide, reading
from tests.docs.test_ten_minutes import free_port
from tests.testing.test_example_project import environment

__all__ = ["free_port"]

pytestmark = pytest.mark.timeout(300)

ASKED = "/orders/17/refund"
LONG = 3_000


@pytest.fixture
def guide() -> Guide:
    """Each test runs a part of the page; see the last one."""
    return open_guide("adopt-with-one-operation")


class House:
    """A folder with the guide's files, and processes that are started in it by its commands."""

    def __init__(self, guide: Guide, folder: Path, database_url: str, bank: Simulator) -> None:
        self.guide = guide
        self.folder = folder
        self.bank = bank
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        told = {"EARNEST_DATABASE_URL": database_url, "BANK_URL": bank.url, "PATH": path}
        self.environment = {**environment(), **told, "BROKER_URL": "filesystem://"}
        self.log = folder / "log.txt"

    @contextmanager
    def running(self, name: str, port: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A command of the guide as a process, with a free port in place of the page's; ended by
        SIGTERM."""
        line = self.guide.text(name)
        if port is not None:
            line = re.sub(r"\b800[01]\b", str(port), line)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                ["sh", "-c", f"export {line.replace(' python', '; exec python')}"]
                if line.startswith("DJANGO") else shlex.split(line),
                cwd=self.folder, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def until(self, told: Callable[[], object]) -> None:
        """Waits until it is so."""
        end = time.monotonic() + 90
        while not told():
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def bank_is_asked(self) -> bool:
        """The fault is used up: the bank has the request, and works on it."""
        return not self.bank.faults()


@pytest.fixture
def house(
    guide: Guide, tmp_path: Path, earnest_database_url: str, earnest_simulator: Simulator
) -> House:
    guide.write(tmp_path, "shop.py")
    return House(guide, tmp_path, earnest_database_url, earnest_simulator)


@pytest.fixture
def web(free_port: int) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{free_port}", timeout=60) as client:
        yield client


def answers(web: httpx2.Client) -> bool:
    try:
        return web.get("/").status_code == HTTPStatus.NOT_FOUND
    except httpx2.TransportError:
        return False


def ask_until_known(house: House, web: httpx2.Client) -> str:
    """As a client does that is told to ask again."""
    told: list[httpx2.Response] = []

    def known() -> bool:
        told.append(web.post(ASKED))
        assert told[-1].status_code in (HTTPStatus.OK, HTTPStatus.ACCEPTED), house.said()
        return told[-1].status_code == HTTPStatus.OK

    house.until(known)
    assert all(answer.json()["operation_id"].startswith("op_") for answer in told[:-1])
    return str(told[-1].json()["id"])


on_each_framework = pytest.mark.parametrize(
    ("files", "command"),
    [(["with_fastapi.py"], "fastapi.sh"), (["with_django.py", "settings.py"], "django.sh")],
    ids=["fastapi", "django"],
)


@on_each_framework
def test_a_web_server_that_dies_in_the_middle_has_paid_once(
    house: House, web: httpx2.Client, free_port: int, files: list[str], command: str
) -> None:
    """P2, P3, P7."""
    house.guide.write(house.folder, *files)
    with house.running(command, free_port) as server:
        house.until(lambda: answers(web))
        first = web.post(ASKED.replace("17", "16"))
        assert first.status_code == HTTPStatus.OK, house.said()
        assert web.post(ASKED.replace("17", "16")).json() == first.json()
        house.bank.put_fault("bank", "slow", delay_ms=LONG)
        with pytest.raises(httpx2.ReadTimeout):
            web.post(ASKED, timeout=0.5)
        house.until(house.bank_is_asked)
        server.send_signal(signal.SIGKILL)
        server.wait(10)
    assert len(house.bank.truth("bank")) == 1, "it was to die before the bank was done"
    with house.running(command, free_port):
        house.until(lambda: answers(web))
        assert ask_until_known(house, web) == ask_until_known(house, web)
    assert [deed["request"]["order_id"] for deed in house.bank.truth("bank")] == [16, 17]


@on_each_framework
def test_who_asks_is_told_that_the_bank_refused(
    house: House, web: httpx2.Client, free_port: int, files: list[str], command: str
) -> None:
    house.guide.write(house.folder, *files)
    with house.running(command, free_port):
        house.until(lambda: answers(web))
        house.bank.put_fault("bank", "refuse")
        refused = web.post(ASKED)
        assert refused.status_code == HTTPStatus.CONFLICT, house.said()
        assert refused.json()["status"] == "the bank said no"
        assert web.post(ASKED).json() == refused.json(), "it is remembered under its key"
    assert house.bank.truth("bank") == []


def test_a_client_of_fastapi_that_hangs_up_has_paid_and_the_next_one_is_told(
    house: House, web: httpx2.Client, free_port: int
) -> None:
    """P7: without a doubt; nobody was killed."""
    house.guide.write(house.folder, "with_fastapi.py")
    with house.running("fastapi.sh", free_port):
        house.until(lambda: answers(web))
        house.bank.put_fault("bank", "slow", delay_ms=LONG)
        with pytest.raises(httpx2.ReadTimeout):
            web.post(ASKED, timeout=0.5)
        assert web.post(ASKED).status_code == HTTPStatus.OK
    assert len(house.bank.truth("bank")) == 1


# ---- Celery ------------------------------------------------------------------------------------


@pytest.fixture
def broker(house: House) -> None:
    """Celery's broker of files: what one process puts out is what another takes in."""
    (house.folder / "data_in").mkdir()
    (house.folder / "data_out").symlink_to("data_in")
    (house.folder / "control").mkdir()


def ask_by_celery(house: House) -> None:
    house.guide.write(house.folder, "with_celery.py", "ask_celery.py")
    subprocess.run(
        [sys.executable, "ask_celery.py"], cwd=house.folder, env=house.environment, check=True
    )


def child_that_calls(house: House, worker: subprocess.Popen[bytes]) -> psutil.Process:
    """The process of Celery's pool that talks to the bank."""
    port = httpx2.URL(house.bank.url).port
    (child,) = (
        child
        for child in psutil.Process(worker.pid).children()
        if any(line.raddr and line.raddr.port == port for line in child.net_connections())
    )
    return child


def test_a_task_whose_process_is_killed_comes_again_and_has_paid_once(
    house: House, broker: None
) -> None:
    """P2, P3, P7: Celery delivers it again, the bank is asked, nothing is sent."""
    house.bank.put_fault("bank", "slow", delay_ms=LONG)
    ask_by_celery(house)
    with house.running("celery.sh") as worker:
        house.until(house.bank_is_asked)
        child_that_calls(house, worker).kill()
        house.until(lambda: "SIGKILL" in house.said())
        assert house.bank.truth("bank") == [], "it was to die before the bank was done"
        house.until(lambda: re.search(r"refund\[.*\] succeeded", house.said()))
        assert len(re.findall(r"refund\[.*\] received", house.said())) >= 2
        ask_by_celery(house)
        house.until(lambda: len(re.findall(r"refund\[.*\] succeeded", house.said())) == 2)
    receipts = set(re.findall(r"succeeded in .*: '(\w+)'", house.said()))
    assert len(receipts) == len(house.bank.truth("bank")) == 1


def test_every_block_of_the_page_is_run_by_a_test_above() -> None:
    above = Path(__file__).read_text(encoding="utf-8")
    with reading("adopt-with-one-operation") as guide:
        guide.used |= {name for name in guide.blocks if f'"{name}"' in above}
