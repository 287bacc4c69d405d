"""The demo as an app to load: `--app earnest.apps.demo.app:app`. Its banks are at
`EARNEST_SIMULATOR_URL`."""

from __future__ import annotations

import os

from earnest.apps.demo.handlers import make_demo

app = make_demo(os.environ.get("EARNEST_SIMULATOR_URL", "http://127.0.0.1:8399"))
