"""Loading an app: whatever happens while somebody's module is imported, it is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from earnest.domain.errors import SettingInvalid
from earnest.engine.loading import load_app

REFUSED = {
    "a call of sys.exit": ("import sys\nsys.exit(0)\n", "SystemExit: 0", 2),
    "sys.exit with words": ("raise SystemExit('set up first')\n", "SystemExit: set up first", 1),
    "a syntax that is none": ("x = 1\nif:\n", "SyntaxError: invalid syntax", 2),
    "a variable not set": ("import os\n\nos.environ['NO_KEY']\n", "KeyError: 'NO_KEY'", 3),
    "no message": ("def make():\n    raise RuntimeError\nmake()\n", "RuntimeError", 2),
    "a name that a library lacks": ("import os\nos.no\n", "AttributeError: module 'os'", 2),
    "a module that lacks": ("import no_such_module\n", "No module named 'no_such_module'", 1),
    "a text that cannot be made": (
        "class Mute(Exception):\n    def __str__(self): raise RuntimeError\nraise Mute\n",
        "Mute: ",
        3,
    ),
    "an error of no kind": ("class Odd(BaseException): pass\nraise Odd('x')\n", "Odd: x", 2),
    "a kind that cannot be": ("import earnest\nearnest.App('a').run('')\n", "a run kind has", 2),
    "no end": ("def again():\n    again()\nagain()\n", "RecursionError: maximum", 2),
}


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("case", REFUSED)
def test_what_ends_an_import_is_told_with_the_app_the_error_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    text, told, line = REFUSED[case]
    name = f"loaded_{list(REFUSED).index(case)}"
    written(tmp_path, monkeypatch, name, text)
    with pytest.raises(SettingInvalid) as refused:
        load_app(f"{name}:app")
    detail = refused.value.detail
    assert detail.startswith(f"the app '{name}:app' cannot be imported: {told}")
    assert detail.endswith(f" ({name}.py:{line})")
    assert "\n" not in detail


def test_an_error_in_a_module_that_the_app_imports_is_shown_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, monkeypatch, "loaded_below", "\n\nint('seven')\n")
    written(tmp_path, monkeypatch, "loaded_above", "import loaded_below\n")
    with pytest.raises(SettingInvalid, match=r"'seven' \(loaded_below\.py:3\)$"):
        load_app("loaded_above:app")


def test_what_a_model_refuses_at_import_is_told_without_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import pydantic\nclass Key(pydantic.BaseModel):\n    n: int\nKey(n='s3cret')\n"
    written(tmp_path, monkeypatch, "loaded_model", text)
    with pytest.raises(SettingInvalid, match="n: Input should be a valid integer") as refused:
        load_app("loaded_model:app")
    assert "s3cret" not in refused.value.detail


def test_an_interruption_while_an_app_is_imported_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, monkeypatch, "loaded_slowly", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_app("loaded_slowly:app")
