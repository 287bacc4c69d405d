"""The client for programs without an event loop: written from the other one, and as good."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from earnest import SyncClient
from earnest.client.errors import RunCancelled
from earnest.domain.errors import InvalidRequest, NotFound
from tests.client.house import House

ROOT = Path(__file__).resolve().parents[2]
ECHO = {"message": "m"}


@pytest.fixture
def client(shared: House) -> Iterator[SyncClient]:
    with SyncClient(shared.url, shared.tokens["member"], patience=15) as opened:
        yield opened


def test_what_is_written_is_what_would_be_written() -> None:
    """Change the async client, then run `python scripts/sync_client.py`."""
    code = "import sync_client; print(sync_client.write(), end='')"
    told = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ROOT / "src/earnest/client/sync_client.py").read_text("utf-8") == told.stdout


def test_every_call_blocks_and_gives_what_came_of_it(client: SyncClient, tmp_path: Path) -> None:
    run = client.submit("demo.echo", ECHO, key="sync")
    assert client.submit("demo.echo", ECHO, key="sync").id == run.id
    assert client.wait(run.id, timeout=30) == ECHO
    assert [event.type for event in client.events(run.id)][-1] == "run.succeeded"
    assert run.id in [one.id for one in client.runs(kind="demo.echo")]
    artifact = client.upload(iter([b"one", b"", b"two"]), name="pieces")
    assert b"".join(client.content(artifact.id)) == b"onetwo"
    assert client.download(artifact.id, tmp_path / "pieces").read_bytes() == b"onetwo"
    assert [one.id for one in client.artifacts()] == [artifact.id]
    client.delete_artifact(artifact.id)
    with pytest.raises(NotFound):
        client.artifact(artifact.id)


def test_a_stream_that_is_left_is_closed_and_others_go_on(client: SyncClient) -> None:
    run = client.submit("demo.sleep", {"seconds": 600})
    for event in client.events(run.id):
        if event.type == "attempt.started":
            break
    client.cancel(run.id)
    with pytest.raises(RunCancelled):
        client.wait(run.id, timeout=30)


def test_many_threads_share_one(client: SyncClient) -> None:
    made: list[str] = []

    def submit() -> None:
        made.append(client.submit("demo.echo", ECHO, key="threads").id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(made))) == (8, 1)


def test_a_closed_one_opens_again(shared: House) -> None:
    client = SyncClient(shared.url, shared.tokens["member"])
    client.close()
    for _ in range(2):
        assert client.submit("demo.echo", ECHO, key="again").kind == "demo.echo"
        client.close()
        client.close()


async def test_an_event_loop_is_not_blocked(shared: House) -> None:
    client = SyncClient(shared.url, shared.tokens["member"])
    with pytest.raises(InvalidRequest, match=r"in async code use `earnest\.Client`"):
        client.submit("demo.echo", ECHO)
    run = await asyncio.to_thread(client.submit, "demo.echo", ECHO)
    assert run.kind == "demo.echo"
    await asyncio.to_thread(client.close)


FORKING = """
import os, sys
from earnest import SyncClient
client = SyncClient(*sys.argv[1:])
first = client.submit("demo.echo", {"message": "m"}, key="forked")
child = os.fork()
second = client.submit("demo.echo", {"message": "m"}, key="forked")
print(first.id == second.id, flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_process_opens_its_own_and_one_that_forgot_to_close_still_ends(
    shared: House,
) -> None:
    words = ["-W", "ignore", "-c", FORKING, shared.url, shared.tokens["member"]]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


def test_an_address_that_is_none_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidRequest, match="use one like"):
        SyncClient("localhost", "ern_x")
