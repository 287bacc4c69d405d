"""A provider simulator: banks that keep their own truth, and faults to switch on in front of them.

It runs in its own process and remembers in its own memory what it really did, so a test can count
side effects at the far end instead of believing the program under test. Start it with
`python -m earnest.testing.simulator --port N`, with `serve`, or in a test with `running_simulator`.

One provider is one module with its routes (`banks`). `truth` is the log, `faults` the rules,
`effects` the one path on which a rule meets an effect.

It is not a mock: callers reach it over real sockets, and a dropped connection is really dropped.
"""

from __future__ import annotations

from earnest.testing.simulator.app import build_app
from earnest.testing.simulator.process import Simulator, running_simulator
from earnest.testing.simulator.serve import serve

__all__ = ["Simulator", "build_app", "running_simulator", "serve"]
