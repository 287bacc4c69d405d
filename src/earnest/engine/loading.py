"""Loading: the app that a command line or a setting names, such as `shop:app`.

What is imported is somebody's program, and it may end in any way while it is: by a mistake in it,
a variable that is not set, a call of `sys.exit`. Whatever happens is told in one line.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from traceback import FrameSummary
from types import ModuleType

from earnest.domain.errors import EarnestError, SettingInvalid
from earnest.domain.kept_error import kept_text
from earnest.engine.app import App
from earnest.engine.process.typed_json import misfit

_PLACES = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_OWN = (
    "<",  # such as `<frozen importlib._bootstrap>`
    *(f"{sysconfig.get_path(name)}/" for name in _PLACES),
    f"{Path(__file__).parents[1]}/",
)


def load_app(path: str) -> App:
    """The app at `module:attribute`, where the module may lie in the current folder. Raises
    `SettingInvalid` saying what is missing, or what went wrong in the module and where."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    module_name, _, attribute = path.partition(":")
    module = _import(path, module_name)
    try:
        found = getattr(module, attribute or "app")
    except AttributeError as error:
        raise SettingInvalid(f"the app {path!r} is not there: {error}") from error
    if not isinstance(found, App):
        raise SettingInvalid(f"{path!r} is a {type(found).__name__}, not an earnest.App")
    return found


def _import(path: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        why = f"{_what(error)}{_where(error)}"
        raise SettingInvalid(f"the app {path!r} cannot be imported: {why}") from error


def _what(error: BaseException) -> str:
    match error:
        case EarnestError():
            return kept_text(error.detail)
        case ImportError() if misfit(error):
            return kept_text(misfit(error))
        case SyntaxError():
            return kept_text(f"{type(error).__name__}: {error.msg}")
    return kept_text(f"{type(error).__name__}: {misfit(error)}".rstrip(": "))


def _where(error: BaseException) -> str:
    """The file and line that a person would look at, in brackets; empty where the module itself was
    not found."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _shown(error.filename, error.lineno)
    frame = _own_frame(traceback.extract_tb(error.__traceback__))
    return "" if frame is None else _shown(frame.filename, frame.lineno)


def _own_frame(frames: list[FrameSummary]) -> FrameSummary | None:
    """The last one in the user's own files; for an app that is installed as a library, the last one
    in the body of a module."""
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_OWN)]
    bodies = [frame for frame in frames if frame.name == "<module>"]
    found = own or bodies
    return found[-1] if found else None


def _shown(filename: str, line: int | None) -> str:
    place = Path(filename)
    here = Path.cwd()
    return f" ({place.relative_to(here) if place.is_relative_to(here) else place}:{line})"
