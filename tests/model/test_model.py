"""The engine against the model: any order of verbs, no difference."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Model
from tests.model.world import World

STEPS_AN_EXAMPLE = 50


def run_examples(world: World, examples: int) -> int:
    """Runs the machine; returns how many steps were compared."""
    before = Model.steps
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_AN_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return Model.steps - before


def test_the_engine_does_what_the_model_says_whatever_the_order(world: World) -> None:
    assert run_examples(world, examples=45) >= 1_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_thousand_steps_show_no_difference(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = 0
    while steps < 50_000:
        steps += run_examples(world, examples=200)
    with capsys.disabled():
        print(f"\nmodel test: {steps} steps, 0 divergences")
