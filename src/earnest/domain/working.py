"""How much one process works on, and how long it may go on, unless it is told otherwise."""

from __future__ import annotations

from datetime import timedelta

CONCURRENCY = 200
"""Runs at once."""

DRAIN = timedelta(seconds=30)
"""How long running work may go on after a stop was asked."""
