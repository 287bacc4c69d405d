"""What people decide, called over HTTP: approvals, and operations that are in doubt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Literal

from earnest.client.calling import Caller, keyed, path_of
from earnest.client.values import Approval, Operation, OperationSummary
from earnest.domain.approval import ApprovalStatus
from earnest.domain.operation import OperationState


class DeskCalls:
    """What is done at the desk."""

    _caller: Caller

    def approvals(
        self, status: ApprovalStatus | str | None = ApprovalStatus.PENDING
    ) -> AsyncGenerator[Approval, None]:
        """What waits for a decision, oldest first; with another status, what was decided; with
        `None`, all."""
        return self._caller.pages(Approval, path_of("approvals"), {"status": status})

    async def approval(self, approval_id: str) -> Approval:
        """One approval: exactly what was asked for, of whom, and what was decided."""
        return await self._caller.read(Approval, path_of("approvals", approval_id))

    async def decide(
        self, approval: Approval, decision: Literal["approve", "reject"], *, note: str = ""
    ) -> Approval:
        """Decides about exactly what was looked at: the approval as it was read.

        The same decision again is harmless. Raises `Conflict` when it was decided otherwise,
        `ApprovalExpired`, `ProposalChanged`, `StaleVersion`, and `Forbidden` without the role.
        """
        body = {"decision": decision, "digest": approval.digest, "note": note}
        headers = {**keyed(None), "If-Match": f'"{approval.version}"'}
        path = path_of("approvals", approval.id, "decision")
        return await self._caller.write(Approval, path, body, headers=headers)

    def operations(
        self, state: OperationState | str | None = OperationState.UNKNOWN
    ) -> AsyncGenerator[OperationSummary, None]:
        """The scope's operations in that state, oldest first: those in doubt, unless another one is
        asked for; with `None`, all."""
        return self._caller.pages(OperationSummary, path_of("operations"), {"state": state})

    async def operation(self, operation_id: str) -> Operation:
        """One operation with its history and what was asked about it."""
        return await self._caller.read(Operation, path_of("operations", operation_id))

    async def resolve(
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
        body = {"outcome": outcome, "evidence": evidence, "note": note, "receipt": receipt}
        headers = {**keyed(None), "If-Match": f'"{operation.version}"'}
        path = path_of("operations", operation.id, "resolution")
        return await self._caller.write(Operation, path, body, headers=headers)

    async def lookup(self, operation_id: str) -> Operation:
        """Asks the provider now whether it was done, and acts on the answer."""
        path = path_of("operations", operation_id, "lookup")
        return await self._caller.write(Operation, path, headers=keyed(None))
