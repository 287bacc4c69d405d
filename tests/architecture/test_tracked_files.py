"""What is committed runs and reads the same on everybody's machine."""

from __future__ import annotations

import re

from tests.architecture.source_tree import ROOT, tracked_files

# Folders of one machine and names of the programs that live there. Each has a letter in brackets,
# so that this file keeps its own rule.
MACHINE_PATHS = re.compile(
    r"/w[o]rk/|/f[a]rm\b|\bf[a]rm-\w|\.l[i]brary\b|/o[p]t/(wheels|pypi)"
    r"|/r[o]ot/|/h[o]me/\w|/U[s]ers/\w"
)


def _lines_naming_a_machine(path: str) -> list[str]:
    text = (ROOT / path).read_bytes().decode(errors="ignore")
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    assert [line for path in tracked_files() for line in _lines_naming_a_machine(path)] == []


def test_no_tracked_file_holds_a_merge_mark() -> None:
    mark = re.compile(rb"^(<{7}|>{7})( |$)", re.MULTILINE)
    assert [path for path in tracked_files() if mark.search((ROOT / path).read_bytes())] == []
