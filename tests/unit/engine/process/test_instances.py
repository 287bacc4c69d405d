"""How a process is named, so that another one can prove that it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from earnest.engine.process.instances import Instance, process_name, provably_ended, this_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_process_has_one_name_while_it_lives() -> None:
    name = process_name(os.getpid())
    assert name.startswith(f"{os.getpid()}:")
    assert name == process_name(os.getpid())


def test_what_has_ended_has_no_name_and_its_end_is_proved() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name(child.pid)
    assert not provably_ended(this_host(), name)
    child.kill()
    child.wait()
    child.communicate()
    assert process_name(child.pid) != name
    assert provably_ended(this_host(), name)


def test_remains_that_nobody_has_fetched_send_nothing_any_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    name = process_name(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert provably_ended(this_host(), name)
    child.communicate()


def test_the_same_number_with_another_start_is_another_process() -> None:
    assert provably_ended(this_host(), f"{os.getpid()}:1")


@pytest.mark.parametrize(
    ("host", "process"), [("", "1:1"), ("elsewhere", "1:1"), (this_host(), "")]
)
def test_of_another_machine_nothing_is_proved(host: str, process: str) -> None:
    assert not provably_ended(host, process)


def test_each_instance_has_a_lock_of_its_own_that_the_server_can_count() -> None:
    made = [Instance(uuid.UUID(int=number)) for number in range(1000)]
    numbers = {one.lock_number for one in made}
    assert len(numbers) == len(made)
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert made[7].lock_number == Instance(uuid.UUID(int=7)).lock_number
