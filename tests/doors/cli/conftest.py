"""The program on this test's own database, or on a home of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest.testing.simulator import Simulator
from tests.doors.cli.program import DEMO, Program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program with nothing said, in an empty folder."""
    return Program(tmp_path, {"EARNEST_HOME": str(tmp_path / "home")})


@pytest.fixture
def here(program: Program, database_url: str, simulator: Simulator) -> Program:
    """The program on a migrated database, with the demo's app."""
    return program.on(
        EARNEST_DATABASE_URL=database_url,
        EARNEST_APP=DEMO,
        EARNEST_SIMULATOR_URL=simulator.url,
        EARNEST_DRAIN="5",
    )


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]
