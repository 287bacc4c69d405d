"""Names that say what a thing is for, and files that say it in their first line."""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from tests.architecture.source_tree import modules, tracked_files

# They name no purpose, so everything ends up in them.
EMPTY_WORDS = {"util", "helper", "common", "base", "manager", "misc"}


def _words(name: str) -> set[str]:
    """The words of a snake_case, kebab-case or CamelCase name, in lower case and singular."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word.lower() for word in found} | {word.lower().removesuffix("s") for word in found}


def _is_empty_name(name: str) -> bool:
    return not EMPTY_WORDS.isdisjoint(_words(name))


def test_no_file_or_folder_has_a_name_without_a_purpose() -> None:
    paths = {module.path for module in modules()} | set(tracked_files())
    code = (path for path in paths if path.startswith(("src/", "tests/", "scripts/")))
    assert sorted(path for path in code if any(map(_is_empty_name, PurePath(path).parts))) == []


def test_no_class_has_a_name_without_a_purpose() -> None:
    classes = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in modules()
        for node in module.classes()
        if _is_empty_name(node.name)
    ]
    assert classes == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [module.path for module in modules() if not ast.get_docstring(module.tree)]
    assert silent == []
