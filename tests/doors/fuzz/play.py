"""Fuzzes the API: schemathesis invents requests from the OpenAPI document, right and wrong ones,
follows its links, and holds every answer against it.

    python -m tests.doors.fuzz.play

Prints one JSON line: how many requests, how many calls of the document they covered, by whose
tokens, and what was wrong. Exit code 1 when anything was, or too few were sent.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from tests.doors.api.contract import Contract

ROOT = Path(__file__).parents[3]
SETTINGS = Path(__file__).with_name("schemathesis.toml")
EVERYTHING = "everything"
PEOPLE = ("member", "approver", "operator", "admin", "other member", "nobody")
LEAST = 5_000
CONTRACT = "contract"
_MOST_SHOWN = 20


@dataclass
class Played:
    """What came of it: requests by token, calls of the document that were reached, and faults.
    Every answer is held against the document twice: by schemathesis and, more strictly, by us."""

    contract: Contract
    examples: Counter[str] = field(default_factory=Counter)
    covered: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(fault.startswith(kind) for fault in self.faults)


@contextmanager
def target() -> Iterator[dict[str, Any]]:
    """A server in a process of its own; what it said of itself."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.doors.fuzz.target", folder]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None, "opened as a pipe"
        try:
            told: dict[str, Any] = json.loads(process.stdout.readline())
            yield told
        finally:
            process.communicate(timeout=30)


def contract_of(told: dict[str, Any]) -> Contract:
    return Contract(httpx2.get(f"{told['url']}/openapi.json").json())


def play(
    told: dict[str, Any], who: str, played: Played, *, examples: int, phases: str, seed: int
) -> None:
    """Fuzzes by one person's token, and adds what came of it."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.ndjson"
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "--config-file", str(SETTINGS), "run", f"{told['url']}/openapi.json",
            "-H", f"Authorization: Bearer {told['tokens'][who]}", "--phases", phases,
            "-n", str(examples), "--seed", str(seed), "--continue-on-failure", "--no-color",
            "--report", "ndjson", "--report-ndjson-path", str(report),
            "--suppress-health-check", "all", "--warnings", "off",
        ]  # fmt: skip
        variables = {**os.environ, "FUZZ_TARGET": json.dumps(told), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        _add(report, who, played)
    if done.returncode and not played.faults:
        ended = f"schemathesis ended with {done.returncode} by {who}"
        played.faults.append(f"{ended}: {done.stdout[-2000:]} {done.stderr[-1000:]}")


def _add(report: Path, who: str, played: Played) -> None:
    for line in report.read_text("utf-8").splitlines():
        recorder = json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
        for id_, case in recorder.get("cases", {}).items():
            sent = recorder["interactions"].get(id_)
            if sent is not None and sent["response"] is not None:
                checks = recorder["checks"].get(id_, [])
                _add_answer(case["value"], sent, checks, who, played)


def _add_answer(
    case: dict[str, Any], sent: dict[str, Any], checks: list[Any], who: str, played: Played
) -> None:
    answer, call = sent["response"], f"{case['method']} {case['path']}"
    body = _bytes(answer)
    failed = [(one["name"], _message(one)) for one in checks if one["status"] == "failure"]
    if played.contract.declares(case["method"], case["path"]):
        headers = httpx2.Headers({name: one[0] for name, one in answer["headers"].items()})
        told = (case["method"], case["path"], answer["status_code"], headers, body)
        failed += [(CONTRACT, fault) for fault in played.contract.faults(*told)]
        played.covered.add(call)
    played.examples[who] += 1
    played.statuses[answer["status_code"]] += 1
    for name, message in failed:
        request = f"{sent['request']['uri']} {_bytes(sent['request'])!r}"
        told_ = f"{answer['status_code']} {body[:400]!r}"
        played.faults.append(f"{name}: {call} by {who}: {message} | {request[:600]} | {told_}")


def _message(check: dict[str, Any]) -> str:
    told: str = check["failure_info"]["failure"]["message"]
    return " ".join(told.split())[:300]


def _bytes(part: dict[str, Any]) -> bytes:
    held = part.get("content") or part.get("body") or {}
    return base64.b64decode(held.get("$base64", ""))


def main() -> None:
    begun = time.monotonic()
    with target() as told:
        played = Played(contract_of(told))
        play(
            told,
            EVERYTHING,
            played,
            examples=60,
            phases="examples,coverage,fuzzing,stateful",
            seed=1,
        )
        for who in PEOPLE:
            play(told, who, played, examples=15, phases="fuzzing,stateful", seed=2)
    total = sum(played.examples.values())
    sys.stderr.write("\n".join(played.faults[:_MOST_SHOWN]) + "\n")
    print(json.dumps(_figure(played, total, time.monotonic() - begun)))
    sys.exit(0 if total >= LEAST and not played.faults else 1)


def _figure(played: Played, total: int, seconds: float) -> dict[str, Any]:
    errors = sum(count for status, count in played.statuses.items() if status >= 500)
    undocumented = ("status_code", "content_type", "response_headers", "response_schema", CONTRACT)
    return {
        "figure": "fuzz",
        "examples": total,
        "by_token": dict(played.examples),
        "calls_covered": len(played.covered),
        "server_errors": errors,
        "undocumented_answers": sum(played.count(kind) for kind in undocumented),
        "other_faults": len(played.faults)
        - sum(played.count(kind) for kind in undocumented)
        - played.count("not_a_server_error"),
        "minutes": round(seconds / 60, 1),
    }


if __name__ == "__main__":
    main()
