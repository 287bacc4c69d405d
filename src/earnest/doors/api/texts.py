"""A run's text over HTTP: as it is written, and as it was."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from earnest.domain.run import Run, RunStatus
from earnest.domain.text import MAX_BYTES_OF_RUN, MAX_DELTAS_OF_RUN, TextDelta, TextHead
from earnest.doors.api import shapes
from earnest.doors.api.json_bodies import json_answer
from earnest.doors.api.parameters import TextQuery
from earnest.doors.api.routes import LAST_TEXT_ID, MINE_OR_SCOPES, Answer, Routes
from earnest.doors.api.showing import show_delta
from earnest.doors.api.streams import Streaming
from earnest.doors.api.text_stream import FRAMES, sequence_asked, stream_text
from earnest.doors.api.visit import Visit, Visiting
from earnest.store import texts

routes = Routes("runs")

Asked = Annotated[TextQuery, Query()]


@routes.get(
    "/v1/runs/{run_id}/text-events",
    Answer(None, items=FRAMES),
    roles=MINE_OR_SCOPES,
    problems=(400,),
    takes=(LAST_TEXT_ID,),
)
async def stream_run_text(
    visit: Visiting, streams: Streaming, run_id: str, query: Asked
) -> Response:
    """Read a run's text as it is written, with how the run stands.

    Each `delta` has its sequence as id. A `reset` comes before the text of a new attempt: what was
    written before is void. At the end `terminal` brings the run with its output, without its input;
    who comes again after it is told 204.
    """
    after = sequence_asked(visit.headers, query.after)
    return await stream_text(visit, streams, run_id, after)


@routes.get(
    "/v1/runs/{run_id}/text-deltas",
    Answer(shapes.TextPage),
    roles=MINE_OR_SCOPES,
    problems=(400,),
)
async def list_text(visit: Visiting, run_id: str, query: Asked) -> Response:
    """Read a run's text after a sequence, all of it that there is by now."""
    run = await visit.run(run_id)
    head = await texts.find_head(visit.engine.database, run.scope_id, run.run_id)
    found = await _text_after(visit, run, query.after)
    page: shapes.TextPage = {
        "items": [show_delta(delta) for delta in found],
        "next_cursor": None,
        "status": run.status,
        "last_sequence": head.last_sequence,
        "kept": head.pruned_at is None,
        "draft": await _draft(visit, run, head),
    }
    return json_answer(page)


async def _text_after(visit: Visit, run: Run, after: int) -> list[TextDelta]:
    # No sequence is beyond the bound, and a larger number may not fit where they are kept.
    after = min(after, MAX_DELTAS_OF_RUN)
    sight, database = visit.sight(run), visit.engine.database
    return await texts.visible(database, sight, after, MAX_DELTAS_OF_RUN, MAX_BYTES_OF_RUN)


async def _draft(visit: Visit, run: Run, head: TextHead) -> str | None:
    """What is left of a work that did not come to its end."""
    if not run.final or run.status is RunStatus.SUCCEEDED:
        return None
    written = await _text_after(visit, run, head.first_sequence - 1)
    return "".join(delta.content for delta in written) or None
