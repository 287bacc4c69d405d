"""Bad input: one clear line that says what to do, a code that is not 0, and nothing half done."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from tests.doors.cli.program import Program


def nothing_was_stored(here: Program) -> bool:
    return bool(here.good("runs", "list", "--json").json == {"items": []})


def test_an_unknown_kind_is_refused_with_those_that_are_known(here: Program) -> None:
    line = here.outside.refused(1, "runs", "submit", "demo.ehco", "{}")
    assert line.startswith("no run kind 'demo.ehco' is registered; known are: demo.children, ")
    assert nothing_was_stored(here)


def test_a_kind_of_an_app_that_was_not_named_is_said_with_what_to_name(here: Program) -> None:
    with here.started("worker"):
        pass
    nothing_named = here.on(EARNEST_APP="")
    line = nothing_named.refused(1, "runs", "submit", "demo.echo", "{}")
    assert line == (
        "the run kind 'demo.echo' is of an app that was not named; name it with --app "
        "MODULE:ATTRIBUTE or EARNEST_APP"
    )
    line = nothing_named.refused(1, "runs", "submit", "demo.ehco", "{}")
    assert line.startswith(
        "no run kind 'demo.ehco' is known, and no app was named with --app or EARNEST_APP; "
        "announced in this database are: demo.children, demo.echo, "
    )


def test_where_no_kind_was_ever_announced_an_app_is_asked_for(here: Program) -> None:
    line = here.on(EARNEST_APP="").refused(1, "runs", "submit", "demo.echo", "{}")
    assert line.endswith("named with --app or EARNEST_APP; announced in this database are: none")


def test_an_input_of_the_wrong_shape_is_refused_with_the_place(here: Program) -> None:
    line = here.outside.refused(1, "runs", "submit", "demo.echo", '{"massage": "hello"}')
    assert line == "the input does not fit demo.echo: message: Field required"
    assert nothing_was_stored(here)


def test_an_oversize_input_is_refused_with_the_limit(here: Program) -> None:
    text = json.dumps({"message": "x" * 300_000})
    line = here.outside.refused(1, "runs", "submit", "demo.echo", "-", text=text)
    assert "at most 262144 are taken" in line
    assert nothing_was_stored(here)


@pytest.mark.parametrize("text", ["{", "NaN", "@no-such-file", "[" * 200_000])
def test_an_input_that_is_not_json_is_refused(here: Program, text: str) -> None:
    line = here.refused(2, "runs", "submit", "demo.echo", "-", text=text)
    assert "INPUT must be JSON" in line
    assert line.endswith("try `earnest runs submit --help`")


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "shwo", "x"),
        ("runs", "show"),
        ("runs", "list", "--statsu", "queued"),
        ("runs", "list", "--status", "done"),
        ("runs", "list", "--limit", "0"),
        ("runs", "list", "--label", "order"),
        ("serve", "--port", "70000"),
        ("worker", "--concurrency", "0"),
        ("worker", "--log", "xml"),
    ],
)
def test_a_wrong_command_line_is_one_line(program: Program, words: tuple[str, ...]) -> None:
    assert "try `earnest " in program.refused(2, *words)


@pytest.mark.parametrize("text", ["run_nothing", "op_01h455vb4pex5vsknk084sn02q", "", "\x1b[31m"])
def test_an_unknown_id_is_not_found(here: Program, text: str) -> None:
    line = here.refused(1, "runs", "show", text)
    assert line.startswith("no such run: ")
    assert "\x1b" not in line


def test_an_unknown_scope_is_refused_with_those_that_there_are(here: Program) -> None:
    here.good("runs", "submit", "demo.echo", '{"message": "x"}')
    assert here.refused(1, "runs", "list", "--scope", "shop") == (
        "there is no scope 'shop'; there are: default"
    )


def test_one_of_several_scopes_has_to_be_chosen(here: Program) -> None:
    for scope in ("east", "west"):
        issued = here.good(
            "tokens", "issue", "ann", "--role", "member", "--scope", scope, "--new-scope"
        )
        assert issued.out.startswith("ern_")
    assert here.refused(1, "runs", "list") == ("choose a scope with --scope; there are: east, west")
    here.good("runs", "list", "--scope", "west")


@pytest.mark.parametrize("command", ["worker", "runs list"])
def test_a_database_that_is_gone_is_said_at_once(program: Program, command: str) -> None:
    nowhere = "postgresql://ann:secret@127.0.0.1:1/shop"
    line = program.outside.refused(3, *command.split(), "--database-url", nowhere)
    assert line.startswith("the database cannot be reached (")
    assert line.endswith("look at EARNEST_DATABASE_URL and whether the server runs")


def test_a_database_that_does_not_exist_is_said(program: Program, database_url: str) -> None:
    url = database_url.replace("/copy_", "/no_copy_")
    line = program.refused(3, "runs", "list", "--database-url", url)
    assert "does not exist" in line
    assert "EARNEST_DATABASE_URL" in line


def test_a_malformed_database_url_is_refused_without_repeating_it(program: Program) -> None:
    line = program.outside.refused(2, "worker", "--database-url", "mysql://ann:secret@host/shop")
    assert "postgresql://user:password@host:5432/name" in line
    assert "secret" not in line


@pytest.mark.parametrize("url", ["shop", "postgresql://ann:secret@host:port/shop", "://secret"])
def test_whatever_is_no_database_url_is_refused(program: Program, url: str) -> None:
    line = program.refused(2, "runs", "list", "--database-url", url)
    assert "is not the address of a PostgreSQL" in line
    assert "secret" not in line


def test_a_home_that_is_a_file_is_refused(program: Program) -> None:
    (program.folder / "home").write_text("mine")
    line = program.outside.refused(3, "worker")
    assert "is not a folder; choose another home with EARNEST_HOME" in line
    assert (program.folder / "home").read_text() == "mine"


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_a_home_that_cannot_be_written_is_refused(program: Program, command: str) -> None:
    option = {"demo": "EARNEST_DEMO_HOME"}.get(command, "EARNEST_HOME")
    line = program.outside.on(**{option: "/proc/earnest"}, EARNEST_PORT="0").refused(
        3, *command.split()
    )
    assert "/proc/earnest" in line
    assert "choose another home" in line


@pytest.mark.parametrize("command", ["runs list", "migrate --check", "demo --port 0"])
def test_a_home_in_the_place_of_a_file_is_called_that(program: Program, command: str) -> None:
    file = program.folder / "file"
    file.touch()
    for home in (file, file / "below"):
        line = program.refused(3, *command.split(), "--home", str(home))
        assert line.startswith(f"{file} is not a folder; choose another home")


def test_reading_a_home_without_a_database_makes_none(program: Program) -> None:
    line = program.refused(3, "runs", "list")
    assert "there is no database in" in line
    assert "start `earnest serve` there first" in line
    assert not (program.folder / "home").exists()


def test_a_busy_port_is_said_before_anything_is_touched(program: Program, busy_port: int) -> None:
    line = program.outside.refused(2, "serve", "--port", str(busy_port))
    assert line == (
        f"port {busy_port} on 127.0.0.1 is taken; choose another with --port or EARNEST_PORT"
    )
    assert not (program.folder / "home").exists()


def test_a_busy_port_of_the_simulator_is_said(program: Program, busy_port: int) -> None:
    assert "is in use" in program.outside.refused(2, "simulate", "--port", str(busy_port))


def test_an_applied_migration_with_another_text_is_refused(
    here: Program, database_url: str
) -> None:
    change(database_url, "UPDATE earnest.migration SET checksum = 'another' WHERE number = 1")
    for command in ("worker", "runs list", "migrate"):
        line = here.outside.refused(3, *command.split())
        assert line.startswith("engine/0001_engine was applied with another text")


def test_a_schema_that_lacks_something_is_refused_by_who_only_looks(
    here: Program, database_url: str
) -> None:
    change(database_url, "DROP SCHEMA earnest CASCADE")
    assert "run `earnest migrate` first" in here.refused(3, "runs", "list")
    assert "the database lacks engine/0001_engine" in here.refused(3, "migrate", "--check")
    assert "applied engine/0001_engine" in here.good("migrate").out
    assert here.good("migrate", "--check", "--json").json == {"missing": []}
    assert nothing_was_stored(here)


def test_a_schema_that_lost_an_index_is_named_by_all_that_look(
    here: Program, database_url: str
) -> None:
    change(database_url, "DROP INDEX earnest.run_due")
    for command in (("migrate", "--check"), ("migrate",)):
        line = here.refused(3, *command)
        assert line.startswith("the database lacks the index run_due of engine/0001_engine; make")
    table = here.run("doctor", "--json")
    (found,) = [one for one in table.json["checks"] if one["check"] == "migrations"]
    assert found["detail"] == "the database lacks the index run_due of engine/0001_engine"
    assert table.code == 1


def test_migrations_are_printed_without_a_database(program: Program) -> None:
    script = program.good("migrate", "--sql").out
    assert "CREATE TABLE run" in script
    assert "INSERT INTO earnest.migration" in script


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("no_such_module:app", "cannot be imported"),
        ("json:app", "is not there"),
        ("json:dumps", "is a function, not an earnest.App"),
        (":app", "cannot be imported"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_said(program: Program, path: str, told: str) -> None:
    assert told in program.refused(2, "worker", "--app", path)
    assert not (program.folder / "home").exists()


@pytest.mark.parametrize("command", ["serve", "worker", "runs submit mine.double 1"])
def test_an_app_that_exits_while_it_is_imported_is_said(program: Program, command: str) -> None:
    (program.folder / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    leaving = program.outside.on(EARNEST_PORT="0", EARNEST_APP="leaving:app")
    line = leaving.refused(2, *command.split())
    assert line == "the app 'leaving:app' cannot be imported: SystemExit: 0 (leaving.py:2)"
    assert not (program.folder / "home").exists()


def test_an_app_is_found_in_the_current_folder(here: Program) -> None:
    (here.folder / "my_shop.py").write_text(
        "from earnest import App\n"
        "app = App('mine')\n"
        "@app.run('mine.double')\n"
        "async def double(ctx, number: int) -> int:\n"
        "    return 2 * number\n"
    )
    mine = here.outside.on(EARNEST_APP="my_shop:app")
    assert mine.good("runs", "submit", "mine.double", "21", "--json").json["input"] == 21


def test_what_an_error_says_orders_no_terminal_about(program: Program) -> None:
    program = program.outside.on(EARNEST_APP="odd:app")
    (program.folder / "odd.py").write_text("raise RuntimeError('a\\x1b[2J\\x9b2Jb\\nc')\n")
    for home in ("home", "ho\x1b[2Jme"):
        (program.folder / "file").touch()
        line = program.refused(3, "migrate", "--home", f"file/{home}")
        assert line.isprintable()
    assert program.refused(2, "worker").isprintable()
    assert program.refused(2, "worker", "--\x1b[2J").isprintable()


def test_a_traceback_is_shown_only_when_asked_for(here: Program) -> None:
    words = ("runs", "show", "run_nothing")
    assert "Traceback" not in here.run(*words).err
    debugged = here.on(EARNEST_DEBUG="1").run(*words)
    assert debugged.code == 1
    assert "\nearnest: no such run" in f"\n{debugged.err}"
    assert "Traceback" in debugged.err


def test_help_says_the_exit_codes(program: Program) -> None:
    told = program.good("--help").out
    assert "Exit codes: 0 done; 1 refused" in told
    assert program.good("runs").out == program.good("runs", "--help").out
    assert program.good("--version").out == "earnest 0.1.0\n"


def change(database_url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(execute())
