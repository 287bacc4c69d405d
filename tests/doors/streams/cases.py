"""What a stream owes its reader: cases that any client can be held against.

A case says how the run stands when the reader comes, what the reader asks for, what happens while
it reads, and what it must have been given. `{epoch}` stands for the epoch of the database.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """`events`, `final`, `kept_from`: the run before. `after`, `last_event_id`, `who`: what is
    asked for. `append`, `finish`: what happens once the reader is there.

    Then what it is given: the status; the numbers of the events, in order; whether a resync comes
    first; the id at last, where that matters; the reason of the end, or `None` if it goes on."""

    promise: str
    events: int = 5
    final: bool = False
    kept_from: int = 1
    after: str | None = None
    last_event_id: str | None = None
    who: str | None = "member"
    append: int = 0
    finish: bool = False
    status: int = 200
    given: tuple[int, ...] = ()
    resync: bool = False
    id: str = ""
    reason: str | None = None


CASES = [
    Case("without a position everything is told from the start", given=(1, 2, 3, 4, 5)),
    Case("after 0 everything is told from the start", after="0", given=(1, 2, 3, 4, 5)),
    Case("after 2 of 5 come 3, 4, 5", after="2", given=(3, 4, 5), id="{epoch}-5"),
    Case("a position may carry its epoch", after="{epoch}-2", given=(3, 4, 5)),
    Case("a reconnect goes on after its last id", last_event_id="{epoch}-2", given=(3, 4, 5)),
    Case("a last id may be a bare number", last_event_id="2", given=(3, 4, 5)),
    Case("the last id beats the query", after="1", last_event_id="4", given=(5,)),
    Case("replay goes over into live", after="3", append=3, given=(4, 5, 6, 7, 8)),
    Case("at the head only what is new is told", after="5", append=2, given=(6, 7)),
    Case(
        "a run that ends while it is read ends the stream",
        after="4",
        append=1,
        finish=True,
        given=(5, 6, 7),
        id="{epoch}-7",
        reason="final",
    ),
    Case(
        "a run that has ended is replayed, and ended",
        5,
        True,
        given=(1, 2, 3, 4, 5, 6),
        reason="final",
    ),
    Case("the rest of a run that has ended", 5, True, after="4", given=(5, 6), reason="final"),
    Case("who has the last event of an ended run is told 204", 5, True, after="6", status=204),
    Case("a reconnect after the end is told 204", 5, True, last_event_id="{epoch}-6", status=204),
    Case(
        "what is no longer kept is told by a resync, and then live",
        12,
        kept_from=10,
        after="1",
        append=2,
        resync=True,
        given=(13, 14),
        id="{epoch}-14",
    ),
    Case(
        "a resync has an id to go on from",
        12,
        kept_from=10,
        after="1",
        resync=True,
        id="{epoch}-12",
    ),
    Case(
        "before the first kept event there is no gap",
        12,
        kept_from=10,
        after="9",
        given=(10, 11, 12),
    ),
    Case("one before that there is one", 12, kept_from=10, after="8", resync=True, id="{epoch}-12"),
    Case("from the start there is one too", 12, kept_from=10, resync=True, append=1, given=(13,)),
    Case("nothing is kept any more", 5, kept_from=6, after="2", resync=True, append=1, given=(6,)),
    Case(
        "nothing is kept, and nothing is missing", 5, kept_from=6, after="5", append=1, given=(6,)
    ),
    Case(
        "a number that was not reached",
        after="9",
        resync=True,
        append=1,
        given=(6,),
        id="{epoch}-6",
    ),
    Case("the greatest number there is", after=str(2**63 - 1), resync=True, id="{epoch}-5"),
    Case("a position of another epoch", after="abc-2", resync=True, append=1, given=(6,)),
    Case("a last id of another epoch", last_event_id="abc-5", resync=True, append=1, given=(6,)),
    Case(
        "the end of another epoch",
        5,
        True,
        last_event_id="abc-6",
        resync=True,
        id="{epoch}-6",
        reason="final",
    ),
    Case(
        "an ended run of which nothing is kept",
        5,
        True,
        kept_from=7,
        after="2",
        resync=True,
        id="{epoch}-6",
        reason="final",
    ),
    Case("an operator reads what others asked for", who="operator", after="3", given=(4, 5)),
    Case("another member sees no such run", who="member2", status=404),
    Case("a member of another scope sees no such run", who="other member", status=404),
    Case("an operator of another scope sees no such run", who="other operator", status=404),
    Case("who has no role that sees runs sees none", who="approver", status=404),
    Case("who has no role sees none", who="nobody", status=404),
    Case("without a token nothing is streamed", who=None, status=401),
    *[
        Case(f"{text!r} is no position", after=text, status=400)
        for text in (
            "-1",
            "abc",
            "1.5",
            "",
            "%202",
            "+2",
            "0x2",
            "{epoch}-",
            "{epoch}-x",
            "-2",
            "2-",
        )
    ],
    Case("a number that no event can have", after=str(2**63), status=400),
    *[
        Case(f"{text!r} is no last id", last_event_id=text, after="2", status=400)
        for text in ("-1", "abc", "{epoch}", "{epoch}--1", "{epoch}-1-2")
    ],
    Case(
        "a bad query is refused also beside a good last id",
        after="x",
        last_event_id="2",
        status=400,
    ),
]
