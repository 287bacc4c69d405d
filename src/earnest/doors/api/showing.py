"""Values as bodies: what of a run, an operation and their parts is shown, and how ids look."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from earnest.domain import access, approval, artifact, audit, explanation, ids, operation, run, text
from earnest.domain import event as events
from earnest.doors.api import (
    shapes,
    shapes_of_access,
    shapes_of_artifacts,
    showing_messages,
    showing_sweeps,
)
from earnest.engine.process.actors import Role

show_webhook = showing_messages.show_webhook
show_delivery = showing_messages.show_delivery
show_source = showing_messages.show_source
show_sweep = showing_sweeps.show_sweep
show_sweep_detail = showing_sweeps.show_sweep_detail
show_difference = showing_sweeps.show_difference


def show_run(found: run.Run) -> shapes.Run:
    """A run, whole; only for who asked for it and operators of its scope."""
    return {**show_run_snapshot(found), "input": found.input, "context": found.context}


def show_run_snapshot(found: run.Run) -> shapes.RunSnapshot:
    """A run as it stands, for streams and refusals: inputs appear in neither (P21)."""
    return {
        **show_run_summary(found),
        "output": found.output,
        "max_attempts": found.max_attempts,
        "failures": found.failures,
        "due_at": found.due_at,
        "deadline_at": found.deadline_at,
        "links": show_links(found.run_id),
    }


def show_run_summary(found: run.Run) -> shapes.RunSummary:
    run_id = ids.show("run", found.run_id)
    is_first = found.lineage_id == found.run_id
    shown: shapes.RunSummary = {
        "id": run_id,
        "run_id": run_id,
        "kind": found.kind,
        "lane": found.lane,
        "status": found.status,
        "version": found.version,
        "revision": found.revision,
        "lineage_id": run_id if is_first else ids.show("run", found.lineage_id),
        "retry_of": _shown_run_id(found.retry_of),
        "conversation_id": found.conversation_id,
        "parent_run_id": _shown_run_id(found.parent_run_id),
        "attempt": found.attempt,
        "priority": found.priority,
        "error": found.error,
        "labels": found.labels,
        "cancel_requested": found.cancel_requested,
        "last_seq": found.last_seq,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "finished_at": found.finished_at,
    }
    if found.waiting_on:
        shown["waiting_on"] = found.waiting_on
    if found.retry_at is not None:
        shown["retry_at"] = found.retry_at
    return shown


def run_path(run_id: uuid.UUID) -> str:
    return f"/v1/runs/{ids.show('run', run_id)}"


def show_links(run_id: uuid.UUID) -> shapes.RunLinks:
    path = run_path(run_id)
    return {
        "self": path,
        "events": f"{path}/events",
        "text_events": f"{path}/text-events",
        "text_deltas": f"{path}/text-deltas",
        "attempts": f"{path}/attempts",
        "operations": f"{path}/operations",
        "steps": f"{path}/steps",
        "artifacts": f"{path}/artifacts",
        "explain": f"{path}/explain",
        "cancel": f"{path}/cancel",
        "retry": f"{path}/retry",
    }


def show_artifact(found: artifact.Artifact) -> shapes_of_artifacts.Artifact:
    shown_id = ids.show("art", found.artifact_id)
    run_link = None if found.run_id is None else run_path(found.run_id)
    return {
        "id": shown_id,
        "name": found.name,
        "media_type": found.media_type,
        "size": found.size,
        "sha256": found.sha256.hex(),
        "run_id": _shown_run_id(found.run_id),
        "created_at": found.created_at,
        "expires_at": found.expires_at,
        "links": {
            "self": f"/v1/artifacts/{shown_id}",
            "content": f"/v1/artifacts/{shown_id}/content",
            "run": run_link,
        },
    }


def show_room(scope_id: str, room: artifact.Room) -> shapes_of_artifacts.ArtifactQuota:
    return {
        "scope_id": scope_id,
        "used_bytes": room.used,
        "quota_bytes": room.quota,
        "is_default": not room.given,
    }


def show_explanation(found: explanation.Explanation) -> shapes.Explanation:
    return {
        "run_id": ids.show("run", found.run_id),
        "kind": found.kind,
        "lane": found.lane,
        "status": found.status,
        "since": found.since,
        "at": found.at,
        "attempt": found.attempt,
        "reasons": [_show_reason(one) for one in found.reasons],
    }


def _show_reason(one: explanation.Reason) -> shapes.Reason:
    return {
        "code": one.code,
        "detail": one.detail,
        "since": one.since,
        "until": one.until,
        "refs": [{"type": ref.type, "id": ref.id, "status": ref.status} for ref in one.refs],
        "moved_by": [
            {"by": mover.by, "call": mover.call, "command": mover.command} for mover in one.moved_by
        ],
    }


def show_event(told: events.Event) -> shapes.Event:
    shown: shapes.Event = {
        "seq": told.seq,
        "type": told.type,
        "run_id": ids.show("run", told.run_id),
        "created_at": told.created_at,
        "payload": told.payload,
    }
    if told.final:
        shown["final"] = True
    return shown


def show_piece(delta: text.TextDelta) -> shapes.TextPiece:
    return {"sequence": delta.sequence, "attempt": delta.attempt, "content": delta.content}


def show_delta(delta: text.TextDelta) -> shapes.TextDelta:
    return {**show_piece(delta), "created_at": delta.created_at}


def show_standing(standing: text.Standing) -> shapes.TextProgress:
    return {"status": standing.status, "stage": standing.stage, "progress": standing.share}


def show_attempt(made: run.Attempt) -> shapes.Attempt:
    return {
        "id": ids.show("att", ids.attempt_id(made.run_id, made.number)),
        "run_id": ids.show("run", made.run_id),
        "number": made.number,
        "outcome": made.outcome,
        "error": made.error,
        "started_at": made.started_at,
        "ended_at": made.ended_at,
    }


def show_step(done: run.Step) -> shapes.Step:
    return {
        "name": done.name,
        "kind": done.kind,
        "attempt": done.attempt,
        "result": done.result,
        "created_at": done.created_at,
    }


def show_operation_summary(found: operation.Operation) -> shapes.OperationSummary:
    return {
        "id": ids.show("op", found.operation_id),
        "run_id": _shown_run_id(found.run_id),
        "kind": found.kind,
        "name": found.name,
        "state": found.state,
        "recovery": found.recovery,
        "provider": found.provider,
        "resource_key": found.resource_key,
        "attempt": found.attempt,
        "send_count": found.send_count,
        "external_ref": found.external_ref,
        "release_reason": found.release_reason,
        "refusal": found.refusal,
        "resolution": found.resolution,
        "version": found.version,
        "created_at": found.created_at,
        "submitting_at": found.submitting_at,
        "unknown_since": found.unknown_since,
        "submitted_at": found.submitted_at,
        "released_at": found.released_at,
        "next_lookup_at": found.lookup_due_at,
    }


def show_operation(
    found: operation.Operation, asked: Sequence[operation.Lookup]
) -> shapes.Operation:
    return {
        **show_operation_summary(found),
        "request": found.request,
        "receipt": found.receipt,
        "lookups": [show_lookup(lookup) for lookup in asked],
    }


def show_approval(found: approval.Approval) -> shapes.ApprovalSummary:
    operation_id = found.operation_id
    return {
        "id": ids.show("apr", found.approval_id),
        "run_id": ids.show("run", found.run_id),
        "name": found.name,
        "proposal": found.proposal,
        "digest": found.digest.hex(),
        "operation_id": None if operation_id is None else ids.show("op", operation_id),
        "effect": found.effect,
        "status": found.status,
        "role": found.role,
        "proposer": found.proposer,
        "excludes_proposer": found.excludes_proposer,
        "version": found.version,
        "requested_at": found.requested_at,
        "expires_at": found.expires_at,
        "decided_by": found.decided_by,
        "decided_at": found.decided_at,
        "note": found.note,
    }


def show_lookup(asked: operation.Lookup) -> shapes.Lookup:
    return {
        "number": asked.number,
        "answer": asked.answer,
        "detail": asked.detail,
        "at": asked.at,
    }


def show_move(made: operation.OperationMove) -> shapes.Move:
    return {
        "version": made.version,
        "move": made.move,
        "state": made.state,
        "attempt": made.attempt,
        "by": made.by,
        "detail": made.detail,
        "at": made.at,
    }


def show_scope(found: access.Scope) -> shapes_of_access.Scope:
    return {
        "id": found.scope_id,
        "created_by": found.created_by,
        "created_at": found.created_at,
    }


def show_principal(found: access.Principal) -> shapes_of_access.Principal:
    return {
        "id": found.principal_id,
        "roles": [Role(role) for role in found.roles],
        "disabled": found.disabled_at is not None,
        "disabled_at": found.disabled_at,
        "version": found.version,
        "created_at": found.created_at,
    }


def show_token(found: access.Token) -> shapes_of_access.Token:
    return {
        "id": found.token_id,
        "principal_id": found.principal_id,
        "roles": [Role(role) for role in found.roles],
        "name": found.name,
        "created_by": found.created_by,
        "created_at": found.created_at,
        "expires_at": found.expires_at,
        "revoked_at": found.revoked_at,
        "used_on": found.used_on,
        "replaces": found.replaces,
    }


def show_audit_entry(found: audit.AuditEntry) -> shapes_of_access.AuditEntry:
    return {
        "id": ids.show("aud", found.audit_id),
        "principal_id": found.principal_id,
        "token_id": found.token_id,
        "action": found.action,
        "subject": found.subject,
        "detail": found.detail,
        "request_id": found.request_id,
        "created_at": found.created_at,
    }


def _shown_run_id(run_id: uuid.UUID | None) -> str | None:
    return None if run_id is None else ids.show("run", run_id)
