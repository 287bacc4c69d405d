"""A sample of what `play` does in whole: no server errors, no answers that are not documented."""

from __future__ import annotations

from tests.doors.fuzz.play import EVERYTHING, Played, contract_of, play, target

PHASES = "examples,coverage,fuzzing,stateful"


def test_whatever_is_asked_is_answered_as_the_document_says() -> None:
    """Positive, negative and following links; by one who may do everything and one who may do
    little."""
    with target() as told:
        played = Played(contract_of(told))
        play(told, EVERYTHING, played, examples=8, phases=PHASES, seed=11)
        play(told, "other member", played, examples=4, phases="fuzzing", seed=12)
    assert played.faults == []
    assert not any(status >= 500 for status in played.statuses)
    assert sum(played.examples.values()) >= 1_500
    assert len(played.covered) >= 60
