"""Loading: the app that a command line or a setting names, such as `shop:app`."""

from __future__ import annotations

import importlib
import sys

from earnest.domain.errors import SettingInvalid
from earnest.engine.app import App


def load_app(path: str) -> App:
    """The app at `module:attribute`, where the module may lie in the current folder. Raises
    `SettingInvalid` saying what is missing."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute or "app")
    except (ImportError, ValueError) as error:
        raise SettingInvalid(f"the app {path!r} cannot be imported: {error}") from error
    except AttributeError as error:
        raise SettingInvalid(f"the app {path!r} is not there: {error}") from error
    if not isinstance(found, App):
        raise SettingInvalid(f"{path!r} is a {type(found).__name__}, not an earnest.App")
    return found
