"""`earnest runs` on a real database, with a real worker where work is done."""

from __future__ import annotations

import json

from tests.doors.cli.program import Program

ECHO = '{"message": "hello"}'


def submit(here: Program, *words: str) -> str:
    return str(here.good("runs", "submit", *words, "--json").json["id"])


def test_a_run_is_asked_for_watched_to_its_end_and_shown(here: Program) -> None:
    with here.started("worker") as worker:
        watched = here.good("runs", "submit", "demo.echo", ECHO, "--watch", "--json")
        assert worker.end() == 0
    events = [json.loads(line) for line in watched.out.splitlines()]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert [event["type"] for event in events] == [
        "run.submitted",
        "attempt.started",
        "run.succeeded",
    ]
    assert events[-1]["final"] is True
    shown = here.good("runs", "show", events[0]["run_id"], "--json").json
    assert (shown["status"], shown["output"]) == ("succeeded", {"message": "hello"})
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["succeeded"]


def test_people_read_a_run_as_lines_and_tables(here: Program) -> None:
    run_id = submit(here, "demo.echo", ECHO)
    with here.started("worker"):
        watched = here.outside.good("runs", "watch", run_id).out
    assert "attempt.started" in watched
    assert watched.splitlines()[-1].split()[0] == "succeeded"
    listed = here.good("runs", "list").out
    assert run_id in listed
    assert "demo.echo" in listed
    assert '"message":"hello"' in here.good("runs", "show", run_id).out


def test_watching_a_run_that_fails_ends_with_code_1(here: Program) -> None:
    run_id = submit(here, "demo.sleep", '{"seconds": 600}')
    here.good("runs", "cancel", run_id)
    watched = here.run("runs", "watch", run_id)
    assert (watched.code, watched.err) == (1, "")
    assert watched.out.splitlines()[-1].startswith("cancelled")


def test_the_text_of_a_run_is_watched_as_it_is_written(here: Program) -> None:
    run_id = submit(here, "demo.text", '{"words": 6, "delay_ms": 20}')
    with here.started("worker"):
        watched = here.good("runs", "watch", run_id, "--text")
    assert watched.out.splitlines()[0] == "what was paid once is paid,"
    assert watched.out.splitlines()[-1].split()[0] == "succeeded"
    again = here.good("runs", "watch", run_id, "--text", "--json").out
    pieces = [json.loads(line) for line in again.splitlines()]
    assert "".join(piece["content"] for piece in pieces) == "what was paid once is paid,"
    assert [piece["sequence"] for piece in pieces] == list(range(1, len(pieces) + 1))


def test_watching_can_be_given_up(here: Program) -> None:
    run_id = submit(here, "demo.echo", ECHO)
    watched = here.run("runs", "watch", run_id, "--timeout", "0.3")
    assert (watched.code, watched.err) == (1, "")
    assert "given up" in watched.out


def test_the_same_key_and_input_give_the_same_run(here: Program) -> None:
    first = submit(here, "demo.echo", ECHO, "--key", "k")
    assert submit(here, "demo.echo", ECHO, "--key", "k") == first
    other = here.refused(1, "runs", "submit", "demo.echo", '{"message": "other"}', "--key", "k")
    assert "was used for another request" in other


def test_what_is_asked_carries_the_user_of_the_machine(here: Program) -> None:
    submit(here, "demo.echo", ECHO, "--key", "k")
    by_another = here.on(LOGNAME="somebody.else")
    assert submit(by_another, "demo.echo", ECHO, "--key", "k") != submit(
        here, "demo.echo", ECHO, "--key", "k"
    )


def test_lists_are_narrowed_and_show_no_inputs(here: Program) -> None:
    wanted = submit(here, "demo.echo", ECHO, "--label", "order=17")
    submit(here, "demo.echo", '{"message": "a secret"}')
    listed = here.good("runs", "list", "--label", "order=17", "--status", "queued", "--json")
    assert [run["id"] for run in listed.json["items"]] == [wanted]
    assert "a secret" not in here.good("runs", "list", "--json").out


def test_one_run_is_cancelled_by_its_id(here: Program) -> None:
    run_id = submit(here, "demo.echo", ECHO)
    [cancelled] = here.good("runs", "cancel", run_id, "--json").json["items"]
    assert (cancelled["outcome"], cancelled["run"]["status"]) == ("cancelled", "cancelled")
    assert here.good("runs", "cancel", run_id).out.split() == [run_id, "cancelled"]


def test_many_runs_are_cancelled_only_by_a_filter_and_with_yes(here: Program) -> None:
    chosen = {submit(here, "demo.echo", ECHO, "--label", "batch=a") for _ in range(2)}
    left = submit(here, "demo.echo", ECHO)
    assert "name one run, or a filter" in here.refused(2, "runs", "cancel", "--yes")
    assert here.refused(1, "runs", "cancel", "--label", "batch=a") == (
        "2 runs match; add --yes to cancel them"
    )
    done = here.good("runs", "cancel", "--label", "batch=a", "--yes", "--json").json["items"]
    assert {item["run"]["id"] for item in done} == chosen
    queued = here.good("runs", "list", "--status", "queued", "--json").json["items"]
    assert [run["id"] for run in queued] == [left]


def test_a_cancelled_run_is_retried_as_a_new_revision(here: Program) -> None:
    run_id = submit(here, "demo.echo", ECHO)
    here.good("runs", "cancel", run_id)
    again = here.good("runs", "retry", run_id, "--json").json
    assert (again["revision"], again["retry_of"], again["status"]) == (2, run_id, "queued")
    assert "is queued" in here.refused(1, "runs", "retry", run_id)


def test_a_signal_is_stored_once_for_its_key(here: Program) -> None:
    run_id = submit(here, "demo.echo", ECHO)
    words = ("runs", "signal", run_id, "paid", '{"by": "card"}', "--key", "k", "--json")
    assert [here.good(*words).json["number"] for _ in range(2)] == [1, 1]
    here.good("runs", "cancel", run_id)
    assert "takes no more signals" in here.refused(1, "runs", "signal", run_id, "paid")


def test_an_input_may_come_from_standard_input_or_a_file(here: Program) -> None:
    (here.folder / "input.json").write_text(ECHO)
    from_file = submit(here, "demo.echo", "@input.json")
    assert here.good("runs", "show", from_file, "--json").json["input"] == {"message": "hello"}
    outcome = here.good("runs", "submit", "demo.echo", "-", "--json", text=ECHO)
    assert outcome.json["input"] == {"message": "hello"}


def test_what_a_handler_wrote_is_printed(here: Program) -> None:
    with here.started("worker"):
        run_id = here.good("runs", "submit", "demo.steps", '{"count": 2}', "--watch").out.split()[0]
    assert here.good("runs", "logs", run_id).out.count("counted") == 2
    shown = here.good("runs", "logs", run_id, "--attempt", "1", "--json").json
    assert [line["fields"] for line in shown["items"]] == [{"number": 1}, {"number": 2}]
    assert shown["left_out"] == 0
    assert here.good("runs", "logs", run_id, "--attempt", "2").out == ""
