"""`earnest check` on a run that old code left parked, by programs that start anew as after a
deployment."""

from __future__ import annotations

import pytest

from tests.doors.cli.program import Program

SHOP = """
import earnest

app = earnest.App("shop")


def look_up(order: int) -> int:
    return order * 10


@app.run("order.ship", max_attempts=1)
async def ship(ctx: earnest.Context, order: int) -> str:
    print("working on", order)
    price = await ctx.step("price", look_up, order)
    await ctx.wait_signal("paid")
    return f"shipped for {price}"
"""
CHANGED = SHOP.replace("look_up, order)", "look_up, order + 1)")
LOUD = SHOP.replace("    price =", "    import os\n    os.write(1, b'raw words')\n    price =")
ENDING = SHOP.replace("    price =", "    import os\n    if order == 17: os._exit(7)\n    price =")
RENAMED = SHOP.replace('"price"', '"cost"')


def deploy(program: Program, text: str) -> Program:
    (program.folder / "shop.py").write_text(text, encoding="utf-8")
    return program


@pytest.fixture
def parked(here: Program) -> str:
    """A run of the old code that waits for its signal."""
    here = deploy(here.on(EARNEST_APP="shop:app").outside, SHOP)
    run_id = str(here.good("runs", "submit", "order.ship", "17", "--json").json["id"])
    with here.started("worker"):
        here.wait_for_event(run_id, "run.waiting")
    return run_id


@pytest.fixture
def shop(here: Program, parked: str) -> Program:
    return here.on(EARNEST_APP="shop:app").outside


def test_code_that_fits_passes_and_what_handlers_print_is_not_in_the_answer(shop: Program) -> None:
    outcome = deploy(shop, SHOP).good("check", "--json")
    assert outcome.json == {
        "checked": 1, "limited": False, "fits": 1, "breaks": 0, "unclear": 0, "runs": [],
    }  # fmt: skip
    assert "working on 17" in outcome.err
    assert "1 runs in flight were checked: 1 fit" in shop.good("check").out


def test_code_that_breaks_a_run_fails_the_check_and_then_the_run(
    shop: Program, parked: str
) -> None:
    outcome = deploy(shop, CHANGED).run("check", "--json")
    assert outcome.code == 1
    (told,) = outcome.json["runs"]
    assert (told["run_id"], told["verdict"], told["code"]) == (parked, "breaks", "code_changed")
    assert "step 'price' was called with other arguments" in told["detail"]
    table = shop.run("check")
    assert table.code == 1
    assert parked in table.out
    with shop.started("worker"):
        shop.good("runs", "signal", parked, "paid")
        assert "code_changed" in shop.wait_for_event(parked, "run.failed")


def test_what_is_unclear_fails_the_check_unless_it_is_asked_to_be_lenient(shop: Program) -> None:
    outcome = deploy(shop, RENAMED).run("check", "--json")
    assert (outcome.code, outcome.json["unclear"]) == (1, 1)
    assert "step 'cost'" in outcome.json["runs"][0]["detail"]
    assert shop.run("check", "--lenient").code == 0


def test_what_a_handler_writes_past_python_is_not_in_the_answer_either(shop: Program) -> None:
    outcome = deploy(shop, LOUD).good("check", "--json")
    assert outcome.json["fits"] == 1
    assert "raw words" in outcome.err


def test_a_handler_that_ends_the_process_breaks_its_run_and_the_others_are_checked(
    shop: Program, parked: str
) -> None:
    with shop.started("worker"):
        for order in ("18", "19"):
            run = shop.good("runs", "submit", "order.ship", order, "--json").json["id"]
            shop.wait_for_event(run, "run.waiting")
    outcome = deploy(shop, ENDING).run("check", "--json")
    assert (outcome.code, outcome.json["checked"], outcome.json["fits"]) == (1, 3, 2)
    (told,) = outcome.json["runs"]
    assert (told["run_id"], told["verdict"], told["code"]) == (parked, "breaks", "process_ended")
    assert "with code 7" in told["detail"]


def test_an_app_that_ends_the_process_when_it_is_loaded_is_told(shop: Program) -> None:
    complaint = deploy(shop, "import os\nos._exit(0)\n").refused(1, "check")
    assert "the app ended the process of the check with code 0" in complaint


def test_an_app_that_cannot_be_loaded_is_told_in_one_line(shop: Program) -> None:
    assert "shop" in deploy(shop, "app = 17\n").refused(2, "check")


def test_other_apps_runs_are_left_to_them_when_that_is_said(here: Program, parked: str) -> None:
    outcome = here.run("check", "--json")
    assert (outcome.code, outcome.json["runs"][0]["code"]) == (1, "unknown_kind")
    assert here.good("check", "--known-only", "--json").json["checked"] == 0
    assert here.good("check", "--kind", "demo.echo", "--json").json["checked"] == 0


def test_a_check_without_an_app_says_how_to_name_one(here: Program) -> None:
    assert "--app module:attribute" in here.on(EARNEST_APP="").refused(2, "check")
