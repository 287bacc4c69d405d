"""Orders of verbs that once showed a difference, each kept as the case that it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.both_sides import Asked
from tests.model.machine import Model
from tests.model.world import World


class Played(Model):
    """The machine without chance: each verb names what it changes, and is compared after."""

    def submitted(self, kind: str = "plain") -> None:
        self.submit(kind, "one", "alice", None, 0, 0, None)
        self.agrees()

    def claimed(self, worker: int = 0) -> None:
        self.claim(worker, 3)
        self.agrees()

    def performed(self, name: str, effect: str, *, pauses: bool = False) -> None:
        self.perform(1, Asked(name, effect, pauses=pauses), None)
        self.agrees()

    def performed_alone(self, worker: int = 0, *, pauses: bool = False, by: str = "held") -> None:
        self.perform(worker, Asked("a", f"model.{by}", alone=True, pauses=pauses), None)
        self.agrees()

    def places(self) -> list[str]:
        return [one.place for one in self.under_way]

    def answered(self, answer: str, place: int = 0, loss: int | None = None) -> None:
        self.answer(place, answer, loss)
        self.agrees()

    def reaped(self) -> None:
        self.reap(0, "look", None)
        self.agrees()

    def passed(self, seconds: float) -> None:
        self.time_passes(seconds, None)
        self.agrees()


@pytest.fixture
def played(world: World) -> Iterator[Played]:
    model = Played()
    model.begin([], 0)
    yield model
    model.teardown()


def test_a_process_that_lost_its_run_is_told_so_at_its_next_renewal(played: Played) -> None:
    played.submitted()
    played.claimed(worker=1)
    played.disturb(1, "cut off", None)
    played.reaped()
    played.renew(1)
    assert played.hands[0].heard == ["lost"]


def test_who_looked_before_a_call_and_lost_the_run_refuses_nothing(played: Played) -> None:
    played.submitted()
    played.claimed(worker=1)
    played.performed("a", "model.asked", pauses=True)
    played.disturb(1, "cut off", None)
    played.reaped()
    played.claimed(worker=0)
    played.performed("a", "model.asked")
    played.answered("refused")
    assert played.under_way[0].place == "call"


def test_calls_on_their_way_are_all_in_doubt_when_one_of_them_is(played: Played) -> None:
    played.submitted()
    played.claimed()
    played.performed("a", "model.resent")
    played.performed("b", "model.held")
    played.passed(46)
    played.reaped()
    states = {operation.state for operation in played.reference.operations.values()}
    assert states == {"unknown"}


def test_a_persons_verdict_is_stored_once_although_its_reply_was_lost(played: Played) -> None:
    played.submitted()
    played.claimed()
    played.performed("a", "model.held")
    played.answered("doubt")
    played.resolve(0, "submitted", 0, loss=1)
    played.agrees()


def test_a_late_failure_of_a_sending_again_counts_the_answers_of_the_others(
    played: Played,
) -> None:
    """Or the next question would come as soon as after the first one."""
    played.perform(0, Asked("a", "model.resent", alone=True), None)
    for _ in range(2):
        played.passed(76)
        played.reaped()
        played.look_up(0, 0, "inconclusive", None)
        played.agrees()
    played.answered("doubt", place=2)
    played.look_up(0, 0, "inconclusive", None)
    played.answered("doubt", place=2)
    assert [one.place for one in played.under_way] == ["call", "call"]
    played.answered("doubt", place=1)


def test_a_stale_attempt_does_not_hear_the_success_of_the_one_beside_it(played: Played) -> None:
    """Both are of one process and settle in one group."""
    played.submitted()
    played.claimed(worker=1)
    played.passed(46)
    played.reaped()
    played.claimed(worker=1)
    played.settle_together(0, None)
    played.agrees()


def test_who_looked_before_a_call_waits_for_the_one_that_another_made_meanwhile(
    played: Played,
) -> None:
    played.performed_alone(pauses=True)
    played.performed_alone()
    played.answered("doubt", place=0)
    assert played.places() == ["call", "wait"]
    played.answered("receipt", place=0)
    played.answered("", place=0)
    assert played.places() == []


def test_who_waits_for_a_call_doubts_none_that_came_after_it(played: Played) -> None:
    """The time of the first call says nothing of the next one, which another caller began."""
    played.performed_alone()
    played.performed_alone()
    played.answered("", place=1)
    played.passed(70)
    played.answered("not_sent", place=0)
    played.performed_alone(worker=1)
    played.passed(10)
    played.answered("", place=0)
    assert played.places() == ["call", "wait"]


@pytest.mark.parametrize(("by", "places"), [("held", []), ("asked", []), ("resent", ["call"])])
def test_who_waits_does_not_wait_for_a_process_that_has_provably_ended(
    played: Played, by: str, places: list[str]
) -> None:
    played.performed_alone(worker=1, by=by)
    played.performed_alone(worker=0, by=by)
    played.disturb(1, "kill", None)
    played.answered("")
    if not places:
        played.answered("")  # It says that it is in doubt, and looks how it stands now.
    assert played.places() == places


@pytest.mark.parametrize("loss", [0, 1])
def test_a_receipt_that_comes_too_late_is_one_finding_although_a_reply_was_lost(
    played: Played, loss: int
) -> None:
    played.performed_alone()
    played.passed(76)
    played.reaped()
    played.resolve(0, "released", 0, None)
    played.answered("receipt", loss=loss)
    (operation,) = played.reference.operations.values()
    assert operation.findings == 1
