"""BullMQ jobs → items. The data of a job is never read.

| where BullMQ keeps the job | condition |
|---|---|
| sorted set `failed` | terminal |
| sorted set `delayed`, has failed before | retrying, at the time that its score holds |
| sorted set `delayed`, has never run | waiting |
| list `active` | running; stuck when nobody holds its lock |
| list `wait` or `paused`, sorted set `prioritized`, has failed before | retrying, due now |
| list `wait` or `paused`, sorted set `prioritized`, has never run | waiting |
| sorted set `waiting-children` | waiting for its children |
| sorted set `completed` | done |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from console.core.backend import Image
from console.core.excerpt import excerpt
from console.core.item import Attempt, Condition, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.text import coming
from console.core.text import instant as shown_time
from console.keyed.job_hash import digest
from console.keyed.redis_server import instant, text
from console.keyed.sections import Section
from plugins.bullmq.prediction import CHILDREN, COMPLETED, DELAYED, FAILED, QUEUED, WAIT, predict

WAITING = "waiting"
"""What a plan calls the place of a job that is in one of these; which one it is, is for the queue to decide."""
WRITTEN = ("finishedOn", "processedOn", "atm", "ats", "delay")
"""The fields that a requeue writes."""
KEPT = ("timestamp", "priority", "parentKey", "stc", "opts")
"""Further fields that must be unchanged. `processedOn` and `ats` change with every execution."""
SHOWN = ("name", "failedReason", "attemptsMade", "deid", "rjk", "pb", "defa")
FIELDS = (*WRITTEN, *KEPT, *SHOWN)
DELAY_UNIT = 4096
"""The score of a delayed job is its time in milliseconds, times this."""
_SEPARATOR = "\0"


def id_for(queue: str, id: str) -> str:
    """One name for a job: ids are unique only within their queue."""
    return f"{queue}{_SEPARATOR}{id}"


def parts_of(id: str) -> tuple[str, str]:
    queue, _, own = id.partition(_SEPARATOR)
    return queue, own


@dataclass(frozen=True)
class BullJob:
    """One job as it was read."""

    id: str
    section: Section
    member: bytes
    score: float | None
    fields: dict[str, bytes | None]
    locked: bool = True
    """A worker holds it, while it is active."""

    @cached_property
    def image(self) -> Image | None:
        written = [None if (value := self.fields[name]) is None else text(value) for name in WRITTEN]
        if any(value is not None and (len(value) > 40 or not value.isascii()) for value in written):
            return None
        queued = self.section.name in QUEUED
        score = None if self.score is None or queued else repr(self.score)
        lifo = "1" if self.opts.get("lifo") is True else ""
        return (WAITING if queued else self.section.name, score, *written, lifo, self.kept)

    @property
    def kept(self) -> str:
        return digest(self.fields, KEPT)

    @cached_property
    def opts(self) -> dict[str, Any]:
        try:
            found = json.loads(text(self.fields["opts"]) or "{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def number(self, name: str) -> int | None:
        value = text(self.fields[name])
        return int(value) if value.isdecimal() and value.isascii() and len(value) < 17 else None

    def time(self, name: str) -> datetime | None:
        value = self.number(name)
        return None if value is None else instant(value / 1000)

    @property
    def updated(self) -> datetime | None:
        """When anything last happened to it."""
        times = (self.time(name) for name in ("timestamp", "processedOn", "finishedOn"))
        return max((at for at in times if at is not None), default=None)

    @property
    def attempts(self) -> int:
        made = self.number("atm")
        return min((self.number("attemptsMade") or 0) if made is None else made, 2**31)

    @property
    def limit(self) -> int:
        """Executions in total. BullMQ runs a job once if nothing else is said."""
        attempts = self.opts.get("attempts")
        return max(attempts, 1) if type(attempts) is int and attempts < 2**31 else 1

    @property
    def due(self) -> datetime | None:
        if self.section.name != DELAYED or self.score is None:
            return None
        return instant(self.score // DELAY_UNIT / 1000)

    @property
    def error(self) -> str | None:
        return text(self.fields["failedReason"]) or None


class BullRows:
    """Makes items of one backend."""

    def __init__(self, backend: str, policy: RetryPolicy) -> None:
        self._backend = backend
        self._policy = policy

    def item(self, job: BullJob, now: datetime, paused: bool) -> Item:
        verdict, shown = self.judge(job, now, paused)
        notes = () if job.fields["timestamp"] is not None else ("its data is gone",)
        return Item(
            ItemKey(self._backend, parts_of(job.id)),
            text(job.fields["name"]),
            job.section.name,
            job.attempts,
            job.limit,
            verdict,
            shown,
            job.time("timestamp"),
            job.updated,
            now,
            job.time("processedOn"),
            notes,
            expiry_of(job),
        )

    def judge(self, job: BullJob, now: datetime, paused: bool) -> tuple[Verdict, str | None]:
        error = job.error
        shown = None if error is None else excerpt(error)
        return self._verdict(job, shown, now, paused), shown

    def _verdict(self, job: BullJob, error: str | None, now: datetime, paused: bool) -> Verdict:
        pattern = self._policy.hopeless(error)
        recoverable = None if not error else pattern is None
        match job.section.name:
            case "failed":
                return Verdict(Condition.TERMINAL, _why_failed(job, pattern), None, False, recoverable)
            case "delayed":
                return _delayed(job, now, paused, recoverable)
            case "active":
                since = job.time("processedOn")
                if job.locked:
                    why = "running" if since is None else f"running since {shown_time(since)}"
                    return Verdict(Condition.RUNNING, why, None, False, recoverable)
                why = "no worker holds its lock; a running worker moves it back to waiting, or to failed"
                return Verdict(Condition.STUCK, why, None, None, recoverable)
            case "waiting-children":
                waiting = Verdict(Condition.WAITING, "", recoverable=recoverable)
                return predict(CHILDREN, job.section.queue, paused=paused).apply(waiting)
            case "completed":
                return Verdict(Condition.DONE, "finished", recoverable=recoverable)
            case _:
                again = job.attempts > 0
                condition = Condition.RETRYING if again else Condition.WAITING
                why = "due now, it is in the queue" if again else "not run yet, it is in the queue"
                verdict = Verdict(condition, why, recoverable=recoverable)
                return predict(WAIT, job.section.queue, paused=paused).apply(verdict)


def _why_failed(job: BullJob, pattern: str | None) -> str:
    if pattern is not None:
        return f"unrecoverable error (matches {pattern!r})"
    if job.attempts >= job.limit:
        return f"{job.attempts} of {job.limit} attempts used"
    return f"failed after {job.attempts} of {job.limit} attempts, and BullMQ does not retry it"


def _delayed(job: BullJob, now: datetime, paused: bool, recoverable: bool | None) -> Verdict:
    condition = Condition.RETRYING if job.attempts else Condition.WAITING
    due = job.due
    when = "now" if due is None else coming(due, now) if due > now else f"since {shown_time(due)}"
    used = f"{job.attempts} of {job.limit} attempts used, " if job.attempts else ""
    verdict = Verdict(condition, f"{used}due {when}", recoverable=recoverable)
    return predict(job.section.name, job.section.queue, paused=paused, due=due).apply(verdict)


def expiry_of(job: BullJob) -> datetime | None:
    """When BullMQ deletes the job: some time after it finished, if its own options say so."""
    option = {FAILED: "removeOnFail", COMPLETED: "removeOnComplete"}.get(job.section.name)
    keep = job.opts.get(option) if option else None
    age = keep.get("age") if isinstance(keep, dict) else None
    finished = job.time("finishedOn")
    if finished is None or isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age < 1e10:
        return None
    return finished + timedelta(seconds=age)


def attempts_of(job: BullJob, traces: list[str]) -> tuple[Attempt, ...]:
    """The last attempts, as far as BullMQ has kept their stack traces."""
    first = job.attempts - len(traces) + 1
    found = [Attempt(first + n if first > 0 else None, None, "failed", trace) for n, trace in enumerate(traces)]
    began, ended = job.time("processedOn"), job.time("finishedOn")
    if found and began is not None:
        took = ended - began if ended is not None and ended >= began else None
        found[-1] = found[-1]._replace(at=began, took=took)
    return tuple(found)


def traces_in(value: bytes | None) -> list[str]:
    try:
        found = json.loads(text(value) or "[]")
    except (ValueError, RecursionError):
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def native(job: BullJob) -> tuple[tuple[str, str | None], ...]:
    shown = tuple((name, None if (value := job.fields[name]) is None else text(value)) for name in FIELDS)
    return (("id", parts_of(job.id)[1]), *shown)
