"""Small parts: the limits of CONTRIBUTING.md, counted over the whole package.

A function's lines run from its `def` to its end, docstring and blank lines included.
"""

from __future__ import annotations

from statistics import median

from tests.architecture.source_tree import Function, modules

LONGEST_FUNCTION = 50
LONGEST_MODULE = 450
SHORT_FUNCTION = 25
SHORT_SHARE = 0.9
MEDIAN_FUNCTION = 10


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _all_lengths() -> list[int]:
    return [_lines(function) for module in modules() for function in module.functions()]


def test_no_function_is_longer_than_fifty_lines() -> None:
    long = [
        f"{module.path}:{function.lineno} {function.name}: {_lines(function)} lines"
        for module in modules()
        for function in module.functions()
        if _lines(function) > LONGEST_FUNCTION
    ]
    assert long == []


def test_no_module_is_longer_than_450_lines() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules()}
    assert {path: n for path, n in lengths.items() if n > LONGEST_MODULE} == {}


def test_nine_functions_of_ten_are_shorter_than_25_lines() -> None:
    lengths = _all_lengths()
    share = sum(length < SHORT_FUNCTION for length in lengths) / len(lengths)
    assert share >= SHORT_SHARE, f"only {share:.1%} of {len(lengths)} functions are short"


def test_the_median_function_has_at_most_ten_lines() -> None:
    assert median(_all_lengths()) <= MEDIAN_FUNCTION
