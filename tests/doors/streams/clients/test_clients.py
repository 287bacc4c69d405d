"""Streams are read with the clients that people use: a browser's, two for Node, one for Python, and
curl. The whole table of clients and cases is a figure; here each client plays those that differ."""

from __future__ import annotations

import pytest

from tests.doors.streams.clients.drivers import CLIENTS, Client, driving
from tests.doors.streams.clients.matrix import EVERY_CASE, Played, play_all
from tests.doors.streams.clients.playing import open_house
from tests.doors.streams.clients.scenarios import SCENARIOS

SOME = (
    "without a position everything is told from the start",
    "after 2 of 5 come 3, 4, 5",
    "a reconnect goes on after its last id",
    "the last id beats the query",
    "replay goes over into live",
    "a run that ends while it is read ends the stream",
    "who has the last event of an ended run is told 204",
    "what is no longer kept is told by a resync, and then live",
    "a number that was not reached",
    "the end of another epoch",
    "a member of another scope sees no such run",
    "without a token nothing is streamed",
    "'abc' is no position",
)
# These take their time: a retry of five seconds and more.
LONG = "told that all places are taken, it comes again later and gets in"


def _some() -> list[Played]:
    short = [case for case in SCENARIOS if case.promise != LONG]
    return [case for case in EVERY_CASE if case.promise in SOME or case in short]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_is_given_what_it_is_owed(client: Client, database_url: str) -> None:
    """P9, P12."""
    if missing := client.needs():
        pytest.skip(f"not run with {client.name}: {missing}")
    async with open_house(database_url) as house, driving(client) as driver:
        verdicts = await play_all(house, client, driver, _some())
    broken = {verdict.promise: verdict.why for verdict in verdicts if not verdict.kept}
    assert broken == {}
    assert sum(verdict.why is None for verdict in verdicts) >= 20


def test_every_promise_is_one_case() -> None:
    promises = [case.promise for case in EVERY_CASE]
    assert len(set(promises)) == len(promises)
    assert {*SOME, LONG} <= set(promises)
