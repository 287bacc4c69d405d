"""The engine against the model: any order of verbs, no difference."""

from __future__ import annotations

import json

import pytest

from tests.model.figures import STEPS, measure, play
from tests.model.world import World


def test_the_engine_does_what_the_model_says_whatever_the_order(world: World) -> None:
    assert play(world, examples=40) >= 1_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_thousand_steps_show_no_difference(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = measure(world, STEPS)
    with capsys.disabled():
        print(f"\n{json.dumps(figure)}")
    assert figure["divergences"] == 0
    assert figure["steps"] >= STEPS
