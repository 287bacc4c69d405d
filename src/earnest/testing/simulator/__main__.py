"""`python -m earnest.testing.simulator`: one simulator in its own process.

Prints `{"url": ..., "pid": ...}` as one line when it answers. With `--stop-with-stdin` it also
stops when its standard input is closed, so it does not outlive a starter that was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

from earnest.domain.errors import SettingInvalid
from earnest.testing.simulator.serve import serve


def main() -> None:
    """Serve until told to stop; a port that cannot be had is one line and exit code 1."""
    options = _options()
    if options.stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    try:
        serve(options.host, options.port, ready=_announce)
    except SettingInvalid as error:
        sys.exit(error.detail)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m earnest.testing.simulator")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--stop-with-stdin", action="store_true")
    return parser.parse_args()


def _announce(url: str) -> None:
    sys.stdout.write(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()


def _stop_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
