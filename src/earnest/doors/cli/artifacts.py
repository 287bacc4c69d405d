"""`earnest artifacts`: files in and out, what may be taken away, and the room of a scope."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from earnest.domain import ids
from earnest.domain.duration import duration
from earnest.domain.errors import Conflict, InvalidRequest, NotFound
from earnest.doors.cli import screen
from earnest.doors.cli.opening import Desk, Lobby, Opening
from earnest.doors.cli.options import Limit, Yes
from earnest.doors.cli.verbs import desk_command, opening_command

if TYPE_CHECKING:
    from earnest.domain.artifact import Artifact, Room
    from earnest.engine.artifacts.attaching import Into

commands = typer.Typer(help="Artifacts: the files of runs and people.")

ArtifactId = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="The artifact's id, such as art_01….")
]
_COLUMNS = ("id", "run", "name", "type", "bytes", "created", "expires")
_CHUNK = 1024 * 1024
_SIZE = re.compile(r"(\d{1,15})\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@desk_command(commands, "list")
async def list_artifacts(
    desk: Desk,
    run: Annotated[
        str | None, typer.Option("--run", help="Only those of this run, oldest first.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List artifacts, newest first."""
    from earnest.engine.artifacts import reading
    from earnest.engine.runs.reading import sight

    if run is None:
        found = await reading.list_artifacts(desk.engine, desk.actor, None, limit)
    else:
        seen = sight(desk.actor, ids.read("run", run))
        found = await reading.of_run(desk.engine, seen, None, limit)
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_artifact)


@desk_command(commands)
async def show(desk: Desk, artifact: ArtifactId) -> None:
    """Show what an artifact is."""
    found = await _find(desk, artifact)
    desk.print_facts(desk.shown.show_artifact(found), left_out=("links",))


@desk_command(commands)
async def put(
    desk: Desk,
    file: Annotated[str, typer.Argument(help="The file; `-` reads standard input.")],
    name: Annotated[str | None, typer.Option("--name", help="The file's own if not given.")] = None,
    media_type: Annotated[
        str | None, typer.Option("--type", help="Its media type; by the name if not given.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="The run it belongs to.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Names this upload: repeated, it is done once.")
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", help="How long it is kept, such as 12h or 7d.")
    ] = None,
) -> None:
    """Store a file as an artifact."""
    from mimetypes import guess_type

    from earnest.domain.artifact import DEFAULT_MEDIA_TYPE
    from earnest.engine.artifacts.storing import Upload, store

    own_name = name or ("standard-input" if file == "-" else Path(file).name)
    into, owner_id = await _into(desk, run)
    with _opened(file) as (source, size), screen.progress_of_bytes(own_name, size) as advance:
        upload = Upload(
            scope_id=desk.scope,
            principal_id=desk.principal,
            owner_id=owner_id,
            name=own_name,
            media_type=media_type or guess_type(own_name)[0] or DEFAULT_MEDIA_TYPE,
            key=key,
            kept=None if expires_in is None else duration(expires_in),
            size=size,
        )
        stored = await store(desk.engine, upload, _chunks(source, advance), into)
    desk.print_row(_COLUMNS, stored.artifact, _row, desk.shown.show_artifact)


@desk_command(commands, has_json=False)
async def get(
    desk: Desk,
    artifact: ArtifactId,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="Where to; its own name if not given, `-`: printed."),
    ] = None,
    yes: Yes = False,
) -> None:
    """Fetch the bytes of an artifact. A file that is there is only replaced with --yes, and only
    when all bytes have come and are as they were stored."""
    from earnest.engine.artifacts.reading import open_artifact

    found = await _find(desk, artifact)
    opened = await open_artifact(desk.engine, found)
    with (
        _written(out or found.name, replaces=yes) as target,
        screen.progress_of_bytes(found.name, found.size) as advance,
    ):
        async for piece in opened.stream():
            target.write(piece)
            advance(len(piece))


@desk_command(commands)
async def delete(
    desk: Desk,
    artifact: Annotated[list[str], typer.Argument(metavar="ARTIFACT...", help="Which.")],
    yes: Yes = False,
) -> None:
    """Delete artifacts. Without --yes they are only shown."""
    from earnest.engine.artifacts import removing

    found = [await _find(desk, one) for one in artifact]
    if yes:
        with screen.progress("deleting", len(found)) as advance:
            for one in found:
                await removing.delete(desk.engine, desk.actor, one.artifact_id)
                advance()
    desk.print_rows(_COLUMNS, found, _row, desk.shown.show_artifact)
    typer.echo("deleted" if yes else "nothing was deleted: add --yes", err=True)


@opening_command(commands, has_scope=False)
def collect(
    opening: Opening,
    unknown: Annotated[
        bool,
        typer.Option(
            "--unknown", help="Also look for bytes that the database does not know; see --yes."
        ),
    ] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only what has lain there so long.")
    ] = "24h",
    yes: Yes = False,
) -> None:
    """Take away the bytes that no artifact names any more, as workers do every minute.

    With --unknown all of the place is looked through for bytes that the database does not know, as
    after it was restored; they are removed with --yes.
    """
    asked = duration(older_than)

    async def act(lobby: Lobby) -> None:
        from earnest.engine.artifacts import removing

        expired = await removing.expire(lobby.engine, limit=1000)
        with screen.progress_of_bytes("removed", None) as advance:
            told_of: dict[str, int] = {"expired": expired}
            told_of["removed"] = await removing.collect(lobby.engine, lambda: advance(1))
        if unknown:
            with screen.progress_of_bytes("looked at", None) as advance:
                found = await removing.collect_unknown(
                    lobby.engine, older_than=asked, removes=yes, told=advance
                )
            told_of |= {"unknown": found.unknown, "unknown_removed": found.removed}
        lobby.print_facts(told_of)

    opening.in_lobby(act)


@opening_command(commands, has_scope=False)
def quota(
    opening: Opening,
    of_scope: Annotated[
        str | None, typer.Argument(metavar="SCOPE", help="Whose; all of them if not given.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Argument(metavar="SIZE", help="The new one, such as 10GB, or `default`."),
    ] = None,
) -> None:
    """Show the room of scopes for artifacts, or set that of one."""
    wanted = None if size in (None, "default") else read_size(str(size))

    async def act(lobby: Lobby) -> None:
        rooms = await _rooms(lobby, of_scope, size is not None, wanted)
        shown = [lobby.shown.show_room(scope_id, room) for scope_id, room in rooms]
        if lobby.as_json:
            screen.print_json(shown[0] if of_scope else {"items": shown})
            return
        columns = ("scope_id", "used_bytes", "quota_bytes", "is_default")
        screen.print_table(columns, [[one[name] for name in columns] for one in shown])

    opening.in_lobby(act)


# ---- what the commands do ----------------------------------------------------------------------


def read_size(text: str) -> int:
    """Bytes: `10GB` are ten thousand million, `10GiB` ten times 2 to the 30. Raises
    `typer.BadParameter`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; write it like 500MB, 10GB, 10GiB")
    base = 1024 if match[3] else 1000
    return int(match[1]) * int(base ** ("kmgt".find(match[2].lower()) + 1 if match[2] else 0))


async def _rooms(
    lobby: Lobby, scope_id: str | None, sets: bool, size: int | None
) -> list[tuple[str, Room]]:
    from earnest.engine.artifacts import quotas
    from earnest.store import artifacts

    engine = lobby.engine
    if scope_id is None:
        return await artifacts.rooms(engine.database, "", 1000, engine.settings.artifact_quota)
    actor = lobby.actor_in(scope_id)
    if sets:
        return [(scope_id, await quotas.set_quota(engine, actor, scope_id, size))]
    return [(scope_id, await quotas.find_room(engine, actor, scope_id))]


async def _into(desk: Desk, run: str | None) -> tuple[Into | None, str | None]:
    from earnest.engine.artifacts.attaching import ToRun
    from earnest.engine.runs.reading import find_run

    if run is None:
        return None, None
    found = await find_run(desk.engine, desk.actor, ids.read("run", run))
    return ToRun(found.scope_id, found.run_id), found.principal_id


async def _find(desk: Desk, text: str) -> Artifact:
    from earnest.engine.artifacts import reading

    try:
        return await reading.find(desk.engine, desk.actor, ids.read("art", text))
    except NotFound:
        raise NotFound(f"no such artifact in scope {desk.scope}: {text[:80]!r}") from None


@contextmanager
def _opened(file: str) -> Iterator[tuple[IO[bytes], int | None]]:
    if file == "-":
        yield sys.stdin.buffer, None
        return
    with _open(file) as source:
        yield source, os.fstat(source.fileno()).st_size


def _open(file: str) -> IO[bytes]:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise InvalidRequest(f"{file} cannot be read: {error.strerror}") from error


async def _chunks(source: IO[bytes], advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    import asyncio

    while chunk := await asyncio.to_thread(source.read, _CHUNK):
        yield chunk
        advance(len(chunk))


@contextmanager
def _written(path: str, *, replaces: bool) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    if target.exists() and not replaces:
        raise Conflict(f"{path} is there already; choose another with --out, or add --yes")
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _row(one: Artifact) -> tuple[object, ...]:
    return (
        ids.show("art", one.artifact_id),
        None if one.run_id is None else ids.show("run", one.run_id),
        one.name,
        one.media_type,
        one.size,
        one.created_at,
        one.expires_at,
    )
