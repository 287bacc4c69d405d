"""Writes `src/earnest/client/sync_client.py` from the async client: the same calls and words, each
carried to a loop in a thread.

    python scripts/sync_client.py

A test fails while what is written differs from what this would write.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "earnest" / "client"
TARGET = PACKAGE / "sync_client.py"
ROOMS = {
    "runs": "RunCalls", "desk": "DeskCalls", "files": "FileCalls", "administration": "AdminCalls",
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef

HEAD = '''"""`earnest.SyncClient`: the client for programs without an event loop. Written by
`scripts/sync_client.py` from the async one: change that one, and run the script."""

from __future__ import annotations

from types import TracebackType

import httpx2

from earnest.client.calling import PATIENCE, SILENCE, checked_url
from earnest.client.client import Client
from earnest.client.loop_thread import LoopThread
'''

CLASS = '''

class SyncClient:
    """`earnest.Client` for scripts, Celery tasks and Django views: every call is the async one,
    done in a thread of this process and waited for. Any number of threads may share it, and a
    forked process opens its own.

        with SyncClient("http://127.0.0.1:8321", token) as client:
            run = client.submit("refund.process", {"id": 17}, key="order-17")
            output = client.wait(run.id)

    `make_http` makes the client of `httpx2` where it needs settings of your own. For the rest see
    `Client`.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        make_http: Callable[[], httpx2.AsyncClient] | None = None,
    ) -> None:
        def make() -> Client:
            http = None if make_http is None else make_http()
            return Client(url, token, patience=patience, silence=silence, http=http)

        checked_url(url)  # what cannot be is told now
        self._there = LoopThread(make, Client.close)

    def close(self) -> None:
        """Closes its connections and ends its thread. Harmless when repeated; the next call opens
        it again."""
        self._there.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
'''


def write() -> str:
    """The whole module."""
    functions = [one for room, name in ROOMS.items() for one in _calls_of(room, name)]
    body = "\n".join(_shown(one) for one in functions)
    text = f"{HEAD}{_imports(body + CLASS)}{CLASS}\n{body}"
    return _formatted(text)


def _tree(room: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{room}.py").read_text("utf-8"))


def _calls_of(room: str, name: str) -> Iterator[Function]:
    (found,) = (
        one for one in _tree(room).body if isinstance(one, ast.ClassDef) and one.name == name
    )
    for one in found.body:
        if isinstance(one, Function) and not one.name.startswith("_"):
            yield one


def _shown(call: Function) -> str:
    """The same call as a method that blocks."""
    given = ast.unparse(call.returns) if call.returns else "None"
    streams = given.startswith("AsyncGenerator[")
    if streams:
        given = given.replace("AsyncGenerator", "Generator", 1).removesuffix("]") + ", None]"
    passed = ", ".join(
        [one.arg for one in call.args.args[1:]]
        + [f"{one.arg}={one.arg}" for one in call.args.kwonlyargs]
    )
    verb = "each" if streams else "call"
    return f'''
    def {call.name}({ast.unparse(call.args)}) -> {given}:
        """{_summary(call)}"""
        return self._there.{verb}(lambda client: client.{call.name}({passed}))
'''


def _summary(call: Function) -> str:
    doc = ast.get_docstring(call) or ""
    lines = [f"        {line}" if line else "" for line in doc.splitlines()]
    return "\n".join(lines).strip() + ("\n        " if "" in lines else "")


def _imports(body: str) -> str:
    """What the signatures name, from where the rooms have it."""
    tree = ast.parse("class One:\n    pass\n" + body)
    named = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    lines = {
        f"from {found.module} import {alias.name}"
        for room in (*ROOMS, "client")
        for found in _tree(room).body
        if isinstance(found, ast.ImportFrom) and found.module != "__future__"
        for alias in found.names
        if alias.name in named
    }
    here = {
        f"from earnest.client.{room} import {one.targets[0].id}"
        for room in ROOMS
        for one in _tree(room).body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        if one.targets[0].id in named
    }
    return "\n".join(sorted({*lines, *here, "from collections.abc import Generator"})) + "\n"


def _formatted(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(TARGET), "-"]
    for words in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *words, *name], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr or done.stdout or text)
        text = done.stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(write(), encoding="utf-8")
