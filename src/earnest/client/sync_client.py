"""`earnest.SyncClient`: the client for programs without an event loop. Written by
`scripts/sync_client.py` from the async one: change that one, and run the script."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx2

from earnest.client.calling import PATIENCE, SILENCE, checked_url
from earnest.client.client import Client
from earnest.client.files import Source
from earnest.client.loop_thread import LoopThread
from earnest.client.values import (
    Approval,
    Artifact,
    Cancelled,
    Event,
    Explanation,
    Operation,
    OperationSummary,
    Resync,
    Run,
    RunSummary,
    Signalled,
    TextPiece,
    TextReset,
    Token,
    Webhook,
)
from earnest.domain.approval import ApprovalStatus
from earnest.domain.operation import OperationState
from earnest.domain.run import RunStatus


class SyncClient:
    """`earnest.Client` for scripts, Celery tasks and Django views: every call is the async one,
    done in a thread of this process and waited for. Any number of threads may share it, and a
    forked process opens its own.

        with SyncClient("http://127.0.0.1:8321", token) as client:
            run = client.submit("refund.process", {"id": 17}, key="order-17")
            output = client.wait(run.id)

    `make_http` makes the client of `httpx2` where it needs settings of your own. For the rest see
    `Client`.
    """

    def __init__(
        self,
        url: str,
        token: str | Callable[[], str],
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        make_http: Callable[[], httpx2.AsyncClient] | None = None,
    ) -> None:
        def make() -> Client:
            http = None if make_http is None else make_http()
            return Client(url, token, patience=patience, silence=silence, http=http)

        checked_url(url)  # what cannot be is told now
        self._there = LoopThread(make, Client.close)

    def close(self) -> None:
        """Closes its connections and ends its thread. Harmless when repeated; the next call opens
        it again."""
        self._there.close()

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(
        self,
        kind: str,
        input: Any = None,
        *,
        key: str | None = None,
        lane: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        conversation_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Run:
        """Submits a run; the same key and request give the same run, however often they are sent.

        Without a key one is made, and is the same for all tries. When it raises `OutcomeUnknown`,
        it is not known whether the run was taken: its field `key` is the one to submit it with
        again. Everything else that is raised is a refusal.
        `IdempotencyConflict`: the key was used for another request.
        """
        return self._there.call(
            lambda client: client.submit(
                kind,
                input,
                key=key,
                lane=lane,
                priority=priority,
                not_before=not_before,
                conversation_id=conversation_id,
                context=context,
                labels=labels,
            )
        )

    def get(self, run_id: str) -> Run:
        """The run as it stands. Raises `NotFound`."""
        return self._there.call(lambda client: client.get(run_id))

    def runs(
        self,
        *,
        status: RunStatus | str | None = None,
        kind: str | None = None,
        lane: str | None = None,
        labels: Mapping[str, str] | None = None,
        conversation_id: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        search: str | None = None,
    ) -> Generator[RunSummary, None, None]:
        """All runs that one may see and that fit, newest first."""
        return self._there.each(
            lambda client: client.runs(
                status=status,
                kind=kind,
                lane=lane,
                labels=labels,
                conversation_id=conversation_id,
                created_after=created_after,
                created_before=created_before,
                search=search,
            )
        )

    def operations_of(self, run_id: str) -> Generator[Operation, None, None]:
        """The operations of a run, oldest first."""
        return self._there.each(lambda client: client.operations_of(run_id))

    def wait(self, run_id: str, *, timeout: float | None = None) -> Any:
        """The run's output, once it has one. Raises `RunFailed`, `RunCancelled` or `RunBlocked`,
        which carry the run, when it ended as that; `TimeoutError` after so many seconds: it goes
        on. A restart of the server is waited out; so is a run that is `unknown`, until somebody
        settles it."""
        return self._there.call(lambda client: client.wait(run_id, timeout=timeout))

    def events(self, run_id: str, *, after: int | str = 0) -> Generator[Event | Resync, None, None]:
        """A run's events after a number, or after the `id` of one that was read before: what there
        is, and then as they happen, until the run has ended. Each comes once and in order, over as
        many connections as it takes.

        A `Resync` comes where events cannot be told any more: take its snapshot of the run; the
        next event is the one after that.
        """
        return self._there.each(lambda client: client.events(run_id, after=after))

    def feed(self, cursor: str | None = None) -> Generator[Event | Resync, None, None]:
        """The events of all runs that one may see, as `events`, without an end: after the `id` of
        one that was read before; `now` for only what is new; without a cursor, from the oldest that
        is kept."""
        return self._there.each(lambda client: client.feed(cursor))

    def text(self, run_id: str, *, after: int = 0) -> Generator[TextPiece | TextReset, None, None]:
        """A run's text as it is written, after a sequence, until the run has ended. After a
        `TextReset` what was written before is void: another attempt begins."""
        return self._there.each(lambda client: client.text(run_id, after=after))

    def cancel(self, run_id: str) -> Cancelled:
        """Cancels a run, and tells what came of it: `cancelled`, `requested` or `too_late`."""
        return self._there.call(lambda client: client.cancel(run_id))

    def retry(self, run_id: str, *, key: str | None = None, repeat_submitted: bool = False) -> Run:
        """Retries a run that ended badly: a new run of the same lineage. Raises `Conflict`; also
        where something was submitted before and might be sent again, unless `repeat_submitted`."""
        return self._there.call(
            lambda client: client.retry(run_id, key=key, repeat_submitted=repeat_submitted)
        )

    def signal(
        self, run_id: str, name: str, payload: Any = None, *, key: str | None = None
    ) -> Signalled:
        """Sends a run a signal; it wakes if it waits for it."""
        return self._there.call(lambda client: client.signal(run_id, name, payload, key=key))

    def explain(self, run_id: str) -> Explanation:
        """Why a run does not move, and what would move it."""
        return self._there.call(lambda client: client.explain(run_id))

    def approvals(
        self, status: ApprovalStatus | str | None = ApprovalStatus.PENDING
    ) -> Generator[Approval, None, None]:
        """What waits for a decision, oldest first; with another status, what was decided; with
        `None`, all."""
        return self._there.each(lambda client: client.approvals(status))

    def approval(self, approval_id: str) -> Approval:
        """One approval: exactly what was asked for, of whom, and what was decided."""
        return self._there.call(lambda client: client.approval(approval_id))

    def decide(
        self, approval: Approval, decision: Literal["approve", "reject"], *, note: str = ""
    ) -> Approval:
        """Decides about exactly what was looked at: the approval as it was read.

        The same decision again is harmless. Raises `Conflict` when it was decided otherwise,
        `ApprovalExpired`, `ProposalChanged`, `StaleVersion`, and `Forbidden` without the role.
        """
        return self._there.call(lambda client: client.decide(approval, decision, note=note))

    def operations(
        self, state: OperationState | str | None = OperationState.UNKNOWN
    ) -> Generator[OperationSummary, None, None]:
        """The scope's operations in that state, oldest first: those in doubt, unless another one is
        asked for; with `None`, all."""
        return self._there.each(lambda client: client.operations(state))

    def operation(self, operation_id: str) -> Operation:
        """One operation with its history and what was asked about it."""
        return self._there.call(lambda client: client.operation(operation_id))

    def resolve(
        self,
        operation: OperationSummary,
        outcome: Literal["submitted", "released"],
        *,
        evidence: str,
        receipt: Any = None,
        note: str = "",
    ) -> Operation:
        """Settles an operation that is in doubt, as it was read: it happened (`submitted`, with the
        receipt) or it did not (`released`), and how that is known.

        The same again is harmless; raises `Conflict` for something else, `StaleVersion` where it
        has changed since it was read.
        """
        return self._there.call(
            lambda client: client.resolve(
                operation, outcome, evidence=evidence, receipt=receipt, note=note
            )
        )

    def lookup(self, operation_id: str) -> Operation:
        """Asks the provider now whether it was done, and acts on the answer."""
        return self._there.call(lambda client: client.lookup(operation_id))

    def upload(
        self,
        source: Source,
        *,
        name: str | None = None,
        media_type: str = "application/octet-stream",
        run_id: str | None = None,
        expires_in: str | None = None,
        key: str | None = None,
    ) -> Artifact:
        """Stores a file: bytes, the file at a path, or what an iterator gives, sent as it comes.

        The server checks the hash of bytes and of a file at a path, and they are sent again where
        a try broke. What an iterator gives can be sent once: `OutcomeUnknown` says that it may or
        may not have been stored. `expires_in` is a span such as `12h`. Raises `QuotaExceeded`,
        `PayloadTooLarge`.
        """
        return self._there.call(
            lambda client: client.upload(
                source,
                name=name,
                media_type=media_type,
                run_id=run_id,
                expires_in=expires_in,
                key=key,
            )
        )

    def artifact(self, artifact_id: str) -> Artifact:
        """What an artifact is. Raises `NotFound`."""
        return self._there.call(lambda client: client.artifact(artifact_id))

    def artifacts(self, *, run_id: str | None = None) -> Generator[Artifact, None, None]:
        """All artifacts that one may see, newest first; with a run, its own, oldest first."""
        return self._there.each(lambda client: client.artifacts(run_id=run_id))

    def delete_artifact(self, artifact_id: str) -> None:
        """Deletes an artifact; one of a run that goes on is kept (`Conflict`). Raises `NotFound`
        also where it was deleted by an earlier try whose answer was lost."""
        return self._there.call(lambda client: client.delete_artifact(artifact_id))

    def content(self, artifact_id: str) -> Generator[bytes, None, None]:
        """The bytes of an artifact, in pieces as they come. Where the connection breaks it goes on
        with the byte after. Raises `DownloadDamaged` at the end if they are not what was stored."""
        return self._there.each(lambda client: client.content(artifact_id))

    def download(self, artifact_id: str, to: Path | str) -> Path:
        """Writes an artifact into a file. It is there whole and checked, or as it was before."""
        return self._there.call(lambda client: client.download(artifact_id, to))

    def tokens(
        self, *, principal_id: str | None = None, live: bool = False
    ) -> Generator[Token, None, None]:
        """The scope's tokens, newest first; `live`: only those that open something now."""
        return self._there.each(lambda client: client.tokens(principal_id=principal_id, live=live))

    def issue_token(
        self,
        principal_id: str,
        *,
        name: str | None = None,
        expires_at: datetime | None = None,
        key: str | None = None,
    ) -> Token:
        """A new token for a principal that is there."""
        return self._there.call(
            lambda client: client.issue_token(
                principal_id, name=name, expires_at=expires_at, key=key
            )
        )

    def rotate_token(
        self, token_id: str, *, overlap_seconds: int | None = None, key: str | None = None
    ) -> Token:
        """A new token of the same principal, and an end for the old one after the overlap."""
        return self._there.call(
            lambda client: client.rotate_token(token_id, overlap_seconds=overlap_seconds, key=key)
        )

    def revoke_token(self, token_id: str) -> Token:
        """Harmless when repeated."""
        return self._there.call(lambda client: client.revoke_token(token_id))

    def webhooks(self) -> Generator[Webhook, None, None]:
        """The scope's webhooks, oldest first."""
        return self._there.each(lambda client: client.webhooks())

    def add_webhook(
        self, url: str, types: Sequence[str], *, description: str = "", key: str | None = None
    ) -> Webhook:
        """Has an address told of what happens from now on."""
        return self._there.call(
            lambda client: client.add_webhook(url, types, description=description, key=key)
        )

    def remove_webhook(self, webhook_id: str) -> None:
        """Removes it with all that waits for it. Raises `NotFound` also where it was removed by an
        earlier try whose answer was lost."""
        return self._there.call(lambda client: client.remove_webhook(webhook_id))
