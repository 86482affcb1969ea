"""Sidekiq jobs → items.

| where Sidekiq keeps the job | condition |
|---|---|
| sorted set `dead` | terminal |
| sorted set `retry` | retrying, at the time that is its score |
| `<process>:work` | running; stuck when its process has stopped reporting |
| list `queue:<name>`, has failed before | retrying, due now |
| list `queue:<name>`, has never failed | waiting |
| sorted set `schedule` | waiting |

A job that succeeds is gone. `retry_count` is 0 after the first failure, so a job has been executed once more than that.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha1
from typing import Any

from console.core.backend import Image
from console.core.excerpt import excerpt
from console.core.item import Attempt, Condition, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.text import coming
from console.core.text import instant as shown_time
from console.keyed.redis_server import instant, text
from console.keyed.sections import Section
from plugins.sidekiq.payload import Payload
from plugins.sidekiq.prediction import DEAD, QUEUE, RETRY, SCHEDULE, WORK, predict

_NATIVE = {DEAD: "dead", RETRY: "retry", WORK: "running", QUEUE: "enqueued", SCHEDULE: "scheduled"}
_MILLISECONDS_FROM = 1e11
"""Times above this are in milliseconds, as Sidekiq 8 writes them; smaller ones are in seconds."""
_LARGEST_BACKTRACE = 1_000_000
_END_OF_TIME = 253_402_300_800
TIMES = ("created_at", "enqueued_at", "failed_at", "retried_at")
WRITTEN = ("retry_count", "enqueued_at")
"""The fields that a requeue changes."""
_NONE_WRITTEN = dict.fromkeys(WRITTEN)


@dataclass(eq=False)
class SidekiqJob:
    """One job as it was read. Nothing changes it; being frozen would double the time it takes to make one."""

    section: Section
    member: bytes
    """Its JSON, as Sidekiq keeps it."""
    score: float
    queue: str = ""
    """The queue that it was taken from, while it runs."""
    alive: bool = True
    """Its process still reports, while it runs."""
    lost: bool = False
    """It ran in a process that has stopped reporting, and is in no list any more."""

    def __post_init__(self) -> None:
        self.payload = Payload(self.member)
        self.fields = self.payload.fields

    @property
    def id(self) -> str:
        jid = self.fields.get("jid")
        if isinstance(jid, str) and jid:
            return jid
        return f"unreadable-{sha1(self.member).hexdigest()[:16]}"  # noqa: S324  a name, not a secret

    @property
    def readable(self) -> bool:
        return bool(isinstance(self.fields.get("jid"), str) and self.fields["jid"])

    @property
    def image(self) -> Image | None:
        if self.section.name == WORK or not self.readable:
            return None
        try:
            values = [self.payload.written(name) for name in WRITTEN]
            rest = sha1(self.payload.edited(_NONE_WRITTEN)).hexdigest()  # noqa: S324
        except (ValueError, RecursionError):
            return None
        for value in values:
            if value is not None and (len(value) > 40 or not value.isascii()):
                return None
        score = None if self.section.name == QUEUE else repr(self.score)
        return (self.section.name, score, *values, rest)

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        return value if isinstance(value, str) else "" if value is None else json.dumps(value)

    def number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if type(value) is int and abs(value) < 2**31 else None

    def time(self, name: str) -> datetime | None:
        seconds = _seconds(self.fields.get(name))
        return None if seconds is None else instant(seconds)

    @property
    def executed_at(self) -> datetime | None:
        """The first failure, or the last retry. After a reset Sidekiq calls the next failure the first one."""
        return max((at for name in ("failed_at", "retried_at") if (at := self.time(name)) is not None), default=None)

    @property
    def updated(self) -> float | None:
        """When anything last happened to it, in seconds."""
        last = self.score if self.section.name in (DEAD, WORK) and 0 < self.score < _END_OF_TIME else 0.0
        for name in TIMES:
            value = self.fields.get(name)
            if value is not None and (at := _seconds(value)) is not None and at > last:
                last = at
        return last or None

    @property
    def target(self) -> str:
        """The queue that it belongs to."""
        return self.queue or self.text("queue") or "default"

    @property
    def type(self) -> str:
        return self.text("wrapped") or self.text("class")

    @property
    def error(self) -> str | None:
        kind, message = self.text("error_class"), self.text("error_message")
        return f"{kind}: {message}" if kind and message else kind or message or None

    @property
    def attempts(self) -> int:
        count = self.number("retry_count")
        return 0 if count is None else max(count + 1, 0)


class SidekiqRows:
    """Makes items of one backend."""

    def __init__(self, backend: str, policy: RetryPolicy, dead_timeout: timedelta) -> None:
        self._backend = backend
        self._policy = policy
        self._dead_timeout = dead_timeout

    def limit(self, job: SidekiqJob) -> int | None:
        """Executions in total. `retry: 5` means five after the first."""
        retries = job.fields.get("retry")
        if job.fields.get("retry_for"):
            return None
        if retries is False:
            return 1
        own = job.number("retry")
        return self._policy.max_attempts if own is None else own + 1

    def item(self, job: SidekiqJob, now: datetime, served: Collection[str]) -> Item:
        verdict, shown = self.judge(job, now, served)
        updated = job.updated
        notes = tuple(
            f"{name} is not a time: {job.text(name)[:60]!r}"
            for name in TIMES
            if job.fields.get(name) is not None and job.time(name) is None
        )
        if not job.readable:
            notes += ("its data is not a Sidekiq job",)
        return Item(
            ItemKey(self._backend, (job.id,)),
            job.type,
            _NATIVE[job.section.name],
            job.attempts,
            self.limit(job),
            verdict,
            shown,
            job.time("created_at"),
            None if updated is None else instant(updated),
            now,
            None if job.lost else job.executed_at,
            notes,
            self._expiry(job),
        )

    def judge(self, job: SidekiqJob, now: datetime, served: Collection[str]) -> tuple[Verdict, str | None]:
        error = job.error
        shown = None if error is None else excerpt(error)
        return self._verdict(job, shown, now, served), shown

    def _expiry(self, job: SidekiqJob) -> datetime | None:
        died = instant(job.score) if job.section.name == DEAD else None
        return None if died is None else died + self._dead_timeout

    def _verdict(self, job: SidekiqJob, error: str | None, now: datetime, served: Collection[str]) -> Verdict:
        pattern = self._policy.hopeless(error)
        recoverable = None if not error else pattern is None
        if job.lost:
            why = "its process ended while it ran, and Sidekiq has no trace of it: it finished, or was lost"
            return Verdict(Condition.UNKNOWN, why, None, None, recoverable)
        match job.section.name:
            case "dead":
                return Verdict(Condition.TERMINAL, self._why_dead(job, pattern), None, False, recoverable)
            case "retry" | "schedule":
                return self._scheduled(job, now, served, recoverable)
            case "work":
                return _running(job, recoverable)
            case _:
                failed = job.attempts > 0
                condition = Condition.RETRYING if failed else Condition.WAITING
                why = "due now, it is in the queue" if failed else "not run yet, it is in the queue"
                return predict(QUEUE, job.target, served).apply(Verdict(condition, why, recoverable=recoverable))

    def _why_dead(self, job: SidekiqJob, pattern: str | None) -> str:
        if pattern is not None:
            return f"unrecoverable error (matches {pattern!r})"
        limit = self.limit(job)
        if limit is not None and job.attempts >= limit:
            return f"{job.attempts} of {limit} attempts used"
        return "killed by a person or by its own code" if job.error is None else "Sidekiq has given it up"

    def _scheduled(
        self, job: SidekiqJob, now: datetime, served: Collection[str], recoverable: bool | None
    ) -> Verdict:
        condition = Condition.RETRYING if job.section.name == RETRY else Condition.WAITING
        due = instant(job.score)
        limit = self.limit(job)
        used = f"{job.attempts} of {limit} attempts used, " if limit is not None and job.attempts else ""
        when = "now" if due is None else coming(due, now) if due > now else f"since {shown_time(due)}"
        verdict = Verdict(condition, f"{used}due {when}", recoverable=recoverable)
        return predict(job.section.name, job.target, served, due).apply(verdict)


def _seconds(value: Any) -> float | None:
    """A time in seconds; None if it is no time in the calendar."""
    if type(value) is not int and type(value) is not float:
        return None
    seconds = value / 1000 if value > _MILLISECONDS_FROM else value
    return seconds if 0 < seconds < _END_OF_TIME else None


def _running(job: SidekiqJob, recoverable: bool | None) -> Verdict:
    since = instant(job.score)
    if not job.alive:
        why = "its process has stopped reporting; Sidekiq recovers such a job only with super_fetch (Pro)"
        return Verdict(Condition.STUCK, why, None, None, recoverable)
    why = "running" if since is None else f"running since {shown_time(since)}"
    return Verdict(Condition.RUNNING, why, None, False, recoverable)


def backtrace(job: SidekiqJob) -> str:
    """The lines that Sidekiq has compressed; empty if there are none."""
    packed = job.fields.get("error_backtrace")
    if isinstance(packed, list):
        return "\n".join(map(str, packed))
    if not isinstance(packed, str):
        return ""
    try:
        lines = json.loads(zlib.decompressobj().decompress(b64decode(packed, validate=True), _LARGEST_BACKTRACE))
    except (ValueError, zlib.error, RecursionError):
        return packed
    return "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)


def full_error(job: SidekiqJob) -> str | None:
    lines = backtrace(job)
    return f"{job.error}\n{lines}" if job.error and lines else job.error


def attempts_of(job: SidekiqJob) -> tuple[Attempt, ...]:
    """The first failure and the last one, which is all that Sidekiq keeps."""
    first, last = job.time("failed_at"), job.executed_at
    found = []
    if first is not None and last is not None and first < last:
        found.append(Attempt(1, first, "failed"))
    if job.attempts and job.error is not None:
        found.append(Attempt(job.attempts, last, "failed", full_error(job)))
    return tuple(found)


def native(job: SidekiqJob) -> tuple[tuple[str, str | None], ...]:
    shown = tuple(
        (name, None if value is None else job.text(name))
        for name, value in job.fields.items()
        if name != "error_backtrace"
    )
    return shown or (("data", text(job.member)[:10_000]),)
