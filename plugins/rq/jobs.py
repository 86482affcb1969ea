"""RQ jobs → items. Nothing is ever unpickled: what is shown comes from the plain fields of a job's hash.

| where RQ keeps the job | status | condition |
|---|---|---|
| `rq:failed:<queue>` | failed, stopped | terminal: RQ does not run it again |
| `rq:scheduled:<queue>` | scheduled, has run before | retrying, at the time in the registry |
| `rq:scheduled:<queue>` | scheduled, has never run | waiting |
| `rq:queue:<queue>` | queued, has run before | retrying, due now |
| `rq:queue:<queue>` | queued, has never run or was requeued | waiting |
| `rq:queue:<queue>:intermediate` | queued | running: a worker has just taken it |
| `rq:wip:<queue>` | started | running; stuck when its worker has stopped reporting |
| `rq:deferred:<queue>` | deferred | waiting for the jobs that it depends on |
| `rq:finished:<queue>` | finished | done |
| `rq:canceled:<queue>` | canceled | cancelled |
| one of these | another status than the place implies | that of the place, with a note: RQ goes by the place |
| none of these | any of these | unknown: RQ has lost the job |

RQ does not count attempts. Retriage counts the results that RQ keeps (at most ten), which have no entry for an attempt
that RQ retried by itself. So the number of attempts is a lower bound, and the error of such an attempt is not stored.
"""

from __future__ import annotations

import zlib
from base64 import b64decode
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from console.core.backend import Image
from console.core.excerpt import excerpt
from console.core.item import Attempt, Condition, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.text import coming
from console.core.text import instant as shown_time
from console.keyed.job_hash import digest
from console.keyed.redis_server import PerKey, instant, text
from console.keyed.sections import Section
from plugins.rq.prediction import (
    CANCELED,
    DEFERRED,
    FAILED,
    FINISHED,
    QUEUE,
    SCHEDULED,
    WIP,
    QueueState,
    predict,
)

_SECTION_OF_STATUS = {
    b"failed": FAILED, b"stopped": FAILED, b"scheduled": SCHEDULED, b"queued": QUEUE, b"started": WIP,
    b"deferred": DEFERRED, b"finished": FINISHED, b"canceled": CANCELED,
}
"""Where RQ keeps a job with this status. A queued one may also be on its way to a worker."""

WRITTEN = ("status", "enqueued_at", "started_at", "ended_at")
"""The fields that a requeue or a discard writes."""
TIMES = ("created_at", *WRITTEN[1:])
KEPT = ("created_at", "origin", "retries_left", "number_of_retries", "worker_name", "last_heartbeat")
"""Further fields that must be unchanged. `last_heartbeat` and `started_at` change with every execution."""
SHOWN = ("description", "timeout", "ttl", "result_ttl", "failure_ttl", "retry_intervals", "repeats_left", "group_id",
         "dependency_ids", "rate_limit_key", "exc_info")
FIELDS = (*WRITTEN, *KEPT, *SHOWN)
BRIEF = (*WRITTEN, *KEPT, "rate_limit_key", "exc_info")
"""What a verdict, a plan and a cause need."""
_HASH, _RESULTS = b"rq:job:", b"rq:results:"
_LAST_RESULT = PerKey.of("XREVRANGE", _RESULTS, "+", "-", "COUNT", 1)
READ = (PerKey.of("HMGET", _HASH, *FIELDS), _LAST_RESULT, PerKey.of("XLEN", _RESULTS))
READ_BRIEF = (PerKey.of("HMGET", _HASH, *BRIEF), _LAST_RESULT)
_NOT_SHOWN = frozenset({"exc_info"})
_OUTCOMES = {b"1": "done", b"2": "failed", b"3": "stopped", b"4": "retried", b"5": "failed"}
_LARGEST_ERROR = 10_000_000


@dataclass(eq=False)
class RqJob:
    """One job as it was read. Nothing changes it; being frozen would double the time it takes to make one."""

    id: str
    section: Section
    member: bytes
    """Its name in the section; that of an execution while it runs."""
    score: float | None
    fields: dict[str, bytes | None]
    results: int = 0
    """How many results RQ has kept."""
    last: dict[bytes, bytes] | None = None
    """The newest result."""
    misplaced: bool = False
    """Its status implies another place than this one, where it is not."""
    lost: bool = False
    """It is in no place at all."""

    def placed(self, section: Section, member: bytes, score: float | None, *, misplaced: bool = False) -> RqJob:
        """The same job, found here."""
        return replace(self, section=section, member=member, score=score, misplaced=misplaced)

    def not_found(self, section: Section) -> RqJob:
        """The same job, which is not where it should be, nor anywhere else."""
        return replace(self, section=section, member=b"", score=None, lost=True)

    @cached_property
    def image(self) -> Image | None:
        fields, section = self.fields, self.section
        try:
            written = [None if (value := fields[name]) is None else _plain(value) for name in WRITTEN]
        except ValueError:
            return None
        score = None if self.score is None or section.name == QUEUE else repr(self.score)
        return (f"{section.name}:{section.queue}", score, *written, digest(fields, KEPT))

    @property
    def implied(self) -> str | None:
        """The section that its status implies."""
        return _SECTION_OF_STATUS.get(self.fields["status"] or b"")

    @property
    def status(self) -> str:
        return text(self.fields["status"])

    @property
    def error(self) -> str | None:
        """The error of its last result, or of its hash in older versions."""
        if self.last is not None and self.last.get(b"type") in (b"2", b"5"):
            return unpacked(self.last.get(b"exc_string"), encoded=True) or None
        if self.last is None and self.fields["exc_info"]:
            return unpacked(self.fields["exc_info"], encoded=False) or None
        return None

    @property
    def updated(self) -> datetime | None:
        """When anything last happened to it."""
        return max((at for at in self.times.values() if at is not None), default=None)

    @property
    def has_run(self) -> bool:
        return bool(self.fields["started_at"] or self.number("number_of_retries"))

    def number(self, field: str) -> int | None:
        """A field with a whole number; None if it has none."""
        value = text(self.fields[field])
        return int(value) if value.lstrip("-").isdecimal() and value.isascii() and len(value) < 10 else None

    @cached_property
    def times(self) -> dict[str, datetime | None]:
        """The fields with times that the hash has; None for a value that is no time."""
        return {name: _time(value) for name in TIMES if (value := self.fields[name])}

    def time(self, field: str) -> datetime | None:
        """A field with a time; None if it has none."""
        return self.times.get(field)


def _time(value: bytes) -> datetime | None:
    try:
        at = datetime.fromisoformat(text(value))
        return at if at.tzinfo is UTC else at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _plain(value: bytes) -> str:
    """A value as a plan keeps it. Raises ValueError if a plan cannot keep it exactly."""
    if len(value) > 200:
        raise ValueError("too long")
    return value.decode()


class RqRows:
    """Makes items of one backend."""

    def __init__(self, backend: str, policy: RetryPolicy) -> None:
        self._backend = backend
        self._policy = policy

    def item(self, job: RqJob, now: datetime, queue: QueueState) -> Item:
        verdict, head = self.judge(job, now, queue)
        retries = job.number("retries_left")
        attempts = self.attempts(job)
        notes = tuple(
            f"{name} is not a time: {text(value)[:60]!r}"
            for name, at in job.times.items()
            if at is None and (value := job.fields[name])
        )
        if job.misplaced:
            notes += (f"its status is {job.status[:60]!r}, but it is among the {job.section.name} jobs",)
        if job.has_run and retries is not None:
            notes += ("RQ does not count attempts; it may have run more often",)
        return Item(
            ItemKey(self._backend, (job.id,)),
            type_of(job),
            job.status,
            attempts,
            None if retries is None else attempts + max(retries, 0),
            verdict,
            head,
            job.time("created_at"),
            job.updated,
            now,
            job.time("started_at"),
            notes,
            expiry_of(job),
        )

    def attempts(self, job: RqJob) -> int:
        retried = job.number("number_of_retries") or 0
        return max(job.results, retried + 1 if retried > 0 else 0, 1 if job.fields["started_at"] else 0)

    def judge(self, job: RqJob, now: datetime, queue: QueueState) -> tuple[Verdict, str | None]:
        error = job.error
        head = None if error is None else excerpt(error)
        return self._verdict(job, head, now, queue), head

    def _verdict(self, job: RqJob, error: str | None, now: datetime, queue: QueueState) -> Verdict:
        pattern = self._policy.hopeless(error)
        recoverable = None if not error else pattern is None
        if job.lost:
            why = f"its status is {job.status}, but it is in none of RQ's lists: RQ has lost it"
            return Verdict(Condition.UNKNOWN, why, recoverable=recoverable)
        match job.section.name:
            case "failed":
                return Verdict(Condition.TERMINAL, _why_failed(job, pattern), None, False, recoverable)
            case "scheduled":
                return self._scheduled(job, now, queue, recoverable)
            case "queue" | "ready":
                condition = Condition.RETRYING if job.has_run else Condition.WAITING
                why = "due now, it is in the queue" if job.has_run else "not run yet, it is in the queue"
                return predict(QUEUE, queue).apply(Verdict(condition, why, recoverable=recoverable))
            case "taken":
                return Verdict(Condition.RUNNING, "a worker has taken it", None, False, recoverable)
            case "wip":
                return self._running(job, now, queue, recoverable)
            case "deferred":
                return predict(DEFERRED, queue).apply(Verdict(Condition.WAITING, "", recoverable=recoverable))
            case "finished":
                return Verdict(Condition.DONE, "finished", recoverable=recoverable)
            case _:
                return Verdict(Condition.CANCELLED, "cancelled", recoverable=recoverable)

    def _scheduled(self, job: RqJob, now: datetime, queue: QueueState, recoverable: bool | None) -> Verdict:
        condition = Condition.RETRYING if job.has_run else Condition.WAITING
        due = instant(job.score or 0.0)
        when = "" if due is None else f"due {coming(due, now)}" if due > now else f"due since {shown_time(due)}"
        verdict = Verdict(condition, f"scheduled, {when}", recoverable=recoverable)
        return predict(SCHEDULED, queue, due).apply(verdict)

    def _running(self, job: RqJob, now: datetime, queue: QueueState, recoverable: bool | None) -> Verdict:
        again = predict(WIP, queue, retries_left=job.number("retries_left") or 0).runs
        since = job.time("started_at")
        reported_until = instant(job.score or 0.0)
        if reported_until is None or reported_until >= now:
            why = "running, start time unknown" if since is None else f"running since {shown_time(since)}"
            return Verdict(Condition.RUNNING, why, None, again, recoverable)
        ends = "retry it" if again else "mark it as failed"
        why = f"its worker should have reported by {shown_time(reported_until)}; RQ will {ends} when a worker cleans up"
        return Verdict(Condition.STUCK, why, None, again, recoverable)


def _why_failed(job: RqJob, pattern: str | None) -> str:
    if job.status == "stopped":
        return "stopped by a person while it ran"
    if pattern is not None:
        return f"unrecoverable error (matches {pattern!r})"
    retries = job.number("retries_left")
    return "failed, and it was enqueued without retries" if retries is None else "failed, and no retries are left"


def type_of(job: RqJob) -> str:
    """The function's name: RQ describes a job by its call."""
    return text(job.fields["description"]).partition("(")[0][:200]


def expiry_of(job: RqJob) -> datetime | None:
    """When RQ deletes the job."""
    return instant(job.score or 0.0) if job.section.name in (FAILED, FINISHED) else None


def unpacked(value: bytes | None, *, encoded: bool) -> str | None:
    """A text that RQ has compressed, or the value itself if it is not compressed."""
    if value is None:
        return None
    try:
        compressed = b64decode(value, validate=True) if encoded else value
        return text(zlib.decompressobj().decompress(compressed, _LARGEST_ERROR)).replace("\0", "")
    except (zlib.error, ValueError):
        return text(value)


def attempts_of(results: list[Any]) -> tuple[Attempt, ...]:
    """The executions that RQ has kept, oldest first."""
    found = []
    for number, (id, pairs) in enumerate(reversed(results), 1):
        fields = dict(zip(pairs[::2], pairs[1::2], strict=False))
        at = instant(int(text(id).partition("-")[0]) / 1000)
        began, ended = (_seconds(fields.get(name)) for name in (b"execution_started_at", b"execution_ended_at"))
        took = ended - began if began is not None and ended is not None and ended >= began else None
        outcome = _OUTCOMES.get(fields.get(b"type", b""), "unknown")
        error = unpacked(fields.get(b"exc_string"), encoded=True)
        found.append(Attempt(number, began or at, outcome, error, took))
    return tuple(found)


def _seconds(value: bytes | None) -> datetime | None:
    try:
        return instant(float(value or b""))
    except ValueError:
        return None


def native(job: RqJob) -> tuple[tuple[str, str | None], ...]:
    """The fields of the hash that are plain text."""
    shown = tuple(
        (name, None if (value := job.fields[name]) is None else text(value))
        for name in FIELDS
        if name not in _NOT_SHOWN
    )
    return (("id", job.id), *shown, ("registry", job.section.key))
