"""Guides whose code is run: the blocks of a page under `docs/guides`, as they stand there.

Every block of code has a name behind its language, as in ```` ```python shop.py ````. The test of a
guide tells its story block by block; when it is over and a block was not used, it fails:

    with reading("submit-from-sql") as guide:
        shop = guide.module("shop.py")
        await connection.execute(guide.text("order.sql"))
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"

_BLOCK = re.compile(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of code; `line` is where its text begins in the page."""

    language: str
    name: str
    text: str
    line: int


@dataclass
class Guide:
    """A page, and what of it was used so far."""

    path: Path
    blocks: dict[str, Block]
    used: set[str] = field(default_factory=set)
    modules: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """The block's text, to be run by the test: SQL, a command, a program of its own."""
        self.used.add(name)
        return self.blocks[name].text

    def module(self, name: str) -> ModuleType:
        """Runs a block of Python as the module that its name says, importable from later ones
        until the guide is closed. Errors point at the page's lines."""
        text = self.text(name)
        made = ModuleType(name.removesuffix(".py"))
        assert made.__name__ not in sys.modules, f"{name} would hide a module of that name"
        sys.modules[made.__name__] = made
        self.modules.append(made.__name__)
        code = compile("\n" * (self.blocks[name].line - 1) + text, str(self.path), "exec")
        exec(code, made.__dict__)  # noqa: S102 - it is our own page
        return made

    def write(self, folder: Path, *names: str) -> None:
        """Puts blocks into files of their names, for programs that are started there."""
        for name in names:
            (folder / name).write_text(self.text(name), encoding="utf-8")

    def unused(self) -> list[str]:
        return sorted(self.blocks.keys() - self.used)

    def close(self) -> None:
        """Its modules are forgotten."""
        for name in self.modules:
            sys.modules.pop(name, None)


def open_guide(title: str) -> Guide:
    path = GUIDES / f"{title}.md"
    return Guide(path, {block.name: block for block in blocks_of(path)})


def blocks_of(path: Path) -> list[Block]:
    page = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2].strip(), match[3], page.count("\n", 0, match.start(3)) + 1)
        for match in _BLOCK.finditer(page)
    ]


@contextmanager
def reading(title: str) -> Iterator[Guide]:
    """The guide of that file name. Fails when a block was left unused."""
    guide = open_guide(title)
    try:
        yield guide
    finally:
        guide.close()
    assert not guide.unused(), f"no test runs these blocks of {guide.path.name}: {guide.unused()}"
