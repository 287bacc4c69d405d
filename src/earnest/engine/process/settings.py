"""Times and sizes of the engine, checked once at start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from earnest.domain.artifact import DEFAULT_QUOTA, KEPT, MAX_ARTIFACT_BYTES
from earnest.domain.errors import SettingInvalid
from earnest.domain.working import CONCURRENCY, DRAIN


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`lease` is how long a claim is valid without renewal, `renew_every` how often the keeper
    renews; `poll` how often idle loops look without a doorbell; `drain` how long running work may
    go on after a stop was asked; `resend_waits` the pauses before a doubtful `resend` call is sent
    again within its attempt; `first_question` and `longest_question_wait` bound the back-off of
    look-ups; a question that was taken comes due again after `question_claim`, should the one who
    took it be gone; `call_grace` is what a call standing alone gets beyond its time-out.
    `claim_batch` is half of `concurrency` where it is not given, so that the database claims and
    settles one half while this process works on the other. `artifact_quota` is the room of a scope
    that nobody gave another, `artifacts_kept` how long an artifact of no run is kept, unless it is
    said with it."""

    lease: timedelta = timedelta(seconds=45)
    renew_every: timedelta = timedelta(seconds=15)
    poll: timedelta = timedelta(milliseconds=500)
    watch_every: timedelta = timedelta(seconds=1)
    drain: timedelta = DRAIN
    call_grace: timedelta = timedelta(seconds=45)
    resend_waits: tuple[timedelta, ...] = (
        timedelta(milliseconds=200),
        timedelta(seconds=1),
        timedelta(seconds=3),
    )
    first_question: timedelta = timedelta(milliseconds=500)
    longest_question_wait: timedelta = timedelta(minutes=5)
    question_claim: timedelta = timedelta(seconds=30)
    dead_after: timedelta = timedelta(seconds=3)
    concurrency: int = CONCURRENCY
    claim_batch: int | None = None
    max_input_bytes: int = 256 * 1024
    max_result_bytes: int = 1024 * 1024
    max_artifact_bytes: int = MAX_ARTIFACT_BYTES
    artifact_quota: int = DEFAULT_QUOTA
    artifacts_kept: timedelta = KEPT

    def __post_init__(self) -> None:
        if self.renew_every <= timedelta(0) or self.renew_every * 3 > self.lease:
            raise SettingInvalid(
                f"the lease of {self.lease} is renewed every {self.renew_every}; renew at least "
                "three times a lease, so that one lost renewal does not end it"
            )
        if self.concurrency < 1 or (self.claim_batch is not None and self.claim_batch < 1):
            raise SettingInvalid("concurrency and claim_batch must be at least 1")

    @property
    def claimed_at_once(self) -> int:
        return self.claim_batch or max(1, self.concurrency // 2)
