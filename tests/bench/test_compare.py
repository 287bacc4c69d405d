"""The comparison with peers: its gates, and one whole run of it with Earnest alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.compare import GATES, _judge, _medians
from bench.systems import SYSTEMS, systems
from tests.architecture.source_tree import ROOT, modules


def test_a_gate_is_reached_from_its_ratio_on() -> None:
    raw = {"raw": 1000.0}
    assert _judge({"submit": {**raw, "earnest": 600.0}}) == {
        "submit / raw": "0.60 of at least 0.6: reached"
    }
    assert "missed" in _judge({"submit": {**raw, "earnest": 599.0}})["submit / raw"]
    assert "missed" in _judge({"submit": raw})["submit / raw"], "earnest failed"
    assert _judge({"submit": {"earnest": 600.0}}) == {}, "there is nothing to compare with"


def test_who_fails_in_one_round_has_no_median() -> None:
    assert _medians({"one": [1.0, 9.0, 5.0], "other": [1.0, 9.0]}) == {"one": 5.0}


def test_every_gate_is_held_against_a_system_that_is_compared() -> None:
    names = {"raw", *(system.name for system in SYSTEMS)}
    assert {gate.other for gate in GATES} <= names


def test_another_system_joins_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "peers.json"
    file.write_text(json.dumps({"mine": {"done": "SELECT 1", "script": "mine.py"}}))
    monkeypatch.setenv("BENCH_PEERS", str(file))
    assert (systems()[-1].name, systems()[-1].path) == ("mine", Path("mine.py"))


def test_each_system_has_its_script_and_each_peer_its_pinned_version() -> None:
    for system in SYSTEMS:
        assert system.path.is_file()
        assert system.name == "earnest" or "==" in system.requires[0]


def test_the_package_knows_nothing_of_the_comparison() -> None:
    lines = [line for module in modules() for line in module.text.splitlines()]
    assert [line for line in lines if line.startswith(("import bench", "from bench"))] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_comparison_ends_with_one_line_of_json(tmp_path: Path) -> None:
    words = ("--quick", "--peers", "earnest")
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", *words],
        cwd=ROOT,
        env={**os.environ, "BENCH_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for what in ("submit", "bulk", "drain_1", "drain_2", "five_steps"):
        assert found[f"{what} earnest"] > 0
    assert "of at least 0.6" in found["submit / raw"]
