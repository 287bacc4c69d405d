"""How often to look whether all is done: counting what is done costs the server what the measured
work then lacks, the more the larger a system's rows are. So it is seldom until the end is near."""

from __future__ import annotations

NEAREST = 0.01  # seconds
FURTHEST = 0.5


def seconds_to_next_look(done: int, count: int, seconds: float) -> float:
    """Half of what the rest will take at the pace of the first `seconds`."""
    if done == 0:
        return NEAREST * 5
    rest = seconds * (count - done) / done
    return max(NEAREST, min(FURTHEST, rest / 2))
