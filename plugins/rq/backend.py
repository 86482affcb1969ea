"""The plugin contract over the queues of RQ."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from console.core.action_rules import (
    ATTEMPTS_STAY,
    NOT_REQUEUEABLE,
    ONE_MORE_TRY,
    Decision,
    decide_discard,
    why_not_moved,
)
from console.core.advice import Notice
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    Deletion,
    DiscardAbility,
    Flag,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import Condition, Detail, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.keyed.job_hash import guard, written_values
from console.keyed.marks import GuardedScript, Move
from console.keyed.redis_backend import LARGEST_WRITE, RedisBackend
from console.keyed.redis_server import Command, RedisServer, instant, raw, text
from console.keyed.sections import Member, Section, Shape
from plugins.rq import jobs as rq
from plugins.rq.jobs import RqJob, RqRows
from plugins.rq.prediction import (
    CANCELED,
    DEFERRED,
    FAILED,
    FINISHED,
    QUEUE,
    SCHEDULED,
    TAKEN,
    WIP,
    QueueState,
    predict,
)
from plugins.rq.script import CHANGE

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
    attempts=frozenset({Attempts.KEEP}),
    undo=UndoKind.EXACT,
    stores_due_time=False,
    largest_write=LARGEST_WRITE,
    guard=("place", "score", *rq.WRITTEN, *rq.KEPT),
    flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
    discard=DiscardAbility(takes_terminal=True),
    deletes_finished=Deletion(keeps_failed=timedelta(days=365)),
)
_QUEUE_PREFIX = "rq:queue:"
_STATE_LIFE = 1.0
"""Seconds for which the names of the queues and their workers are remembered."""
_SEARCHED = 5_000
"""How many running jobs of a queue are searched for one that is not where it should be."""
_CLEANED_UP = Notice(
    "Its worker has stopped reporting. RQ itself will retry it or mark it as failed; requeue it after that."
)
_RATE_LIMITED = Notice("Has a rate limit, which only RQ itself applies. Requeue it with RQ.")


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """`redis://host:6379/0`, `rediss://…` or `unix:///path/to/socket?db=0`."""
    queues: tuple[str, ...] = ()
    """The queues to read; all that RQ has registered if it is left out."""


class JobImage(NamedTuple):
    """The image of a job."""

    place: str
    """The registry or list, and the queue."""
    score: str | None
    status: str | None
    enqueued_at: str | None
    started_at: str | None
    ended_at: str | None
    kept: str
    """A digest of the other fields that must be unchanged."""

    @property
    def written(self) -> tuple[str | None, ...]:
        return self[2:6]


_SUSPENDED = "rq:suspended"


class RqQueues(RedisBackend[RqJob]):
    """The queues of RQ on one Redis server."""

    options = Options
    plugin = "rq"
    library = "RQ"
    signs = ("rq:queues", "rq:workers")
    abilities = ABILITIES
    own_policy = RetryPolicy(items_have_limits=True)
    script = GuardedScript(CHANGE, own=2, shared=6 + len(rq.WRITTEN))

    @classmethod
    def systems(cls) -> Mapping[str, Abilities]:
        return {"RQ (Python) on Redis": ABILITIES}

    def __init__(
        self, name: str, server: RedisServer, policy: RetryPolicy, options: Options, *, read_only: bool
    ) -> None:
        super().__init__(name, server, policy, options, read_only=read_only)
        self._only = options.queues
        self._rows = RqRows(name, policy)
        self._states: Mapping[str, QueueState] = {}
        self._read_at = float("-inf")

    # -- sections ------------------------------------------------------------------------------------

    def _queues(self) -> Mapping[str, QueueState]:
        if time.monotonic() - self._read_at > _STATE_LIFE:
            names = self._only or sorted(
                text(key).removeprefix(_QUEUE_PREFIX) for key in self.server.call("SMEMBERS", "rq:queues")
            )
            asked = [
                command for queue in names
                for command in (("SMEMBERS", f"rq:workers:{queue}"), ("EXISTS", f"rq:scheduler-lock:{queue}"))
            ]
            suspended, *replies = self.server.pipeline([("EXISTS", _SUSPENDED), *asked])
            # A worker that was killed stays in the set, but its own key expires.
            workers = sorted({worker for members in replies[::2] for worker in members})
            found = self.server.pipeline([("EXISTS", worker) for worker in workers]) if workers else []
            alive = {worker for worker, exists in zip(workers, found, strict=True) if exists}
            self._states = {
                queue: QueueState(queue, len(alive & {*members}), bool(lock), bool(suspended))
                for queue, members, lock in zip(names, replies[::2], replies[1::2], strict=True)
            }
            self._read_at = time.monotonic()
        return self._states

    def sections(self) -> list[Section]:
        return sorted((each for queue in self._queues() for each in _sections(queue).values()), key=lambda s: s.order)

    # -- reading jobs --------------------------------------------------------------------------------

    def load(self, section: Section, found: Sequence[Member]) -> list[RqJob | None]:
        return self._located(section, found, self._read(section, found))

    def load_brief(self, section: Section, found: Sequence[Member]) -> list[RqJob | None]:
        return self._located(section, found, self._read(section, found, brief=True))

    def _located(self, section: Section, found: Sequence[Member], jobs: Sequence[RqJob]) -> list[RqJob | None]:
        """These jobs of a section; None for one that is listed elsewhere or has expired."""
        now, implied = time.time(), _implied_by(section)
        odd = [n for n, job in enumerate(jobs) if job.implied != implied]
        elsewhere = dict(zip(odd, self._placed([jobs[n] for n in odd]), strict=True)) if odd else {}
        kept: list[RqJob | None] = []
        for n, job in enumerate(jobs):
            if section.name in (FAILED, FINISHED) and 0 <= found[n].score <= now:
                kept.append(None)  # RQ removes it when a worker cleans up
            elif n not in elsewhere:
                kept.append(job)
            else:
                placed = elsewhere[n]
                kept.append(placed if placed.section.order == section.order else None)
        return kept

    def _read(self, section: Section, found: Sequence[Member], *, brief: bool = False) -> list[RqJob]:
        """The jobs of these members. A brief job has only what verdicts, plans and causes need."""
        commands, fields = (rq.READ_BRIEF, rq.BRIEF) if brief else (rq.READ, rq.FIELDS)
        names = [_job_of(section, member.name) for member in found]
        replies = self.server.for_each(names, commands)
        step, scored = len(commands), section.shape is not Shape.LIST
        counts = [0] * len(names) if brief else map(int, replies[2::step])
        return [
            RqJob(
                text(name), section, member.name, member.score if scored else None,
                dict(zip(fields, values, strict=True)), count,
                dict(zip(last[0][1][::2], last[0][1][1::2], strict=False)) if last else None,
            )
            for name, member, values, last, count in zip(
                names, found, replies[::step], replies[1::step], counts, strict=True
            )
        ]

    def find(self, ids: Sequence[str]) -> dict[str, RqJob]:
        queues = self._queues()
        jobs = self._read(_NOWHERE, [Member(raw(id), 0.0) for id in ids])
        expected: list[Section | None] = []
        for job in jobs:
            queue, name = text(job.fields["origin"]), job.implied
            expected.append(_sections(queue)[name] if queue in queues and name is not None else None)
        found = self._where_expected(jobs, expected)
        lost = [n for n, job in enumerate(found) if job is None]
        for n, job in zip(lost, self._placed([jobs[n] for n in lost]), strict=True):
            if job.section.order != _NOWHERE.order:
                found[n] = job
            elif job.status and (place := expected[n]) is not None:
                taken = place.name == QUEUE
                taken_by = _sections(place.queue)[TAKEN]
                found[n] = jobs[n].placed(taken_by, raw(jobs[n].id), None) if taken else jobs[n].not_found(place)
        now = time.time()
        return {job.id: job for job in found if job is not None and not _has_expired(job, now)}

    def _where_expected(self, jobs: Sequence[RqJob], expected: Sequence[Section | None]) -> list[RqJob | None]:
        """The jobs that are where their status implies."""
        running = [n for n, place in enumerate(expected) if place is not None and place.name == WIP]
        executions = self.server.pipeline(
            [("ZRANGE", b"rq:executions:" + raw(jobs[n].id), 0, -1) for n in running]
        )
        members = {n: raw(job.id) for n, job in enumerate(jobs)}
        members |= {n: found[0] for n, found in zip(running, executions, strict=True) if found}
        asked: list[tuple[int, Section, Command]] = []
        for n, place in enumerate(expected):
            if place is None:
                continue
            sections = [place, _sections(place.queue)[TAKEN]] if place.name == QUEUE else [place]
            asked += [(n, section, command) for section in sections for command in section.presence(members[n])]
        replies = self.server.pipeline([command for _, _, command in asked])
        found: list[RqJob | None] = [None] * len(jobs)
        for (n, section, _), reply in zip(asked, replies, strict=True):
            if reply is not None and found[n] is None:
                score = None if section.shape is Shape.LIST else float(reply)
                found[n] = jobs[n].placed(section, members[n], score)
        return found

    def _placed(self, jobs: Sequence[RqJob]) -> list[RqJob]:
        """Jobs that were not where their status implies: there after all, or in the first section that has them."""
        if not jobs:
            return []
        queues = self._queues()
        expected = [
            _sections(queue)[name] if (queue := text(job.fields["origin"])) in queues and name is not None else None
            for job in jobs
            for name in [job.implied]
        ]
        found = self._where_expected(jobs, expected)
        sections = self.sections()
        running = [section for section in sections if section.name == WIP]
        listed = self.server.pipeline([("ZRANGE", section.key, 0, _SEARCHED) for section in running])
        wip = {
            section.key: {text(_job_of(section, name)): name for name in names}
            for section, names in zip(running, listed, strict=True)
        }
        placed: list[RqJob] = []
        for job, seen in zip(jobs, found, strict=True):
            placed.append(seen if seen is not None else self._misplaced(job, sections, wip))
        return placed

    def _misplaced(
        self, job: RqJob, sections: Sequence[Section], wip: Mapping[str, Mapping[str, bytes]]
    ) -> RqJob:
        names = [wip[section.key].get(job.id, b"") if section.name == WIP else raw(job.id) for section in sections]
        commands = [
            (n, command)
            for n, (section, name) in enumerate(zip(sections, names, strict=True)) if name
            for command in section.presence(name)
        ]
        for (n, _), reply in zip(commands, self.server.pipeline([c for _, c in commands]), strict=True):
            if reply is not None:
                score = None if sections[n].shape is Shape.LIST else float(reply)
                return job.placed(sections[n], names[n], score, misplaced=True)
        return job.placed(_NOWHERE, b"", None, misplaced=True)

    # -- items ---------------------------------------------------------------------------------------

    def to_item(self, entry: RqJob, now: datetime) -> Item:
        return self._rows.item(entry, now, self._queue_of(entry))

    def judge(self, job: RqJob, now: datetime) -> tuple[Verdict, str | None]:
        return self._rows.judge(job, now, self._queue_of(job))

    def _queue_of(self, job: RqJob) -> QueueState:
        return self._queues().get(job.section.queue, QueueState(job.section.queue))

    def possible(self, entry: RqJob) -> frozenset[Condition]:
        return frozenset({Condition.UNKNOWN}) if entry.lost else super().possible(entry)

    def references(self, entry: RqJob, item: Item) -> Sequence[str]:  # noqa: ARG002
        return (text(entry.fields["description"]), entry.section.queue)

    def details(self, job: RqJob, item: Item) -> Detail:
        results = self.server.call("XREVRANGE", b"rq:results:" + raw(job.id), "+", "-")
        schedule = []
        if item.verdict.next_retry_at is not None and item.verdict.will_run_again:
            schedule.append(f"attempt {item.attempts + 1} {item.verdict.why.partition(', ')[2]}")
            if retries := job.number("retries_left"):
                schedule.append(f"then {retries} more retries")
            schedule.append("then terminal")
        return Detail(
            item, job.error, rq.attempts_of(results), tuple(schedule), rq.native(job),
            (("queue", job.section.queue),),
        )

    def expiring_scores(self, section: Section, now: datetime, until: datetime) -> tuple[str, str] | None:
        return (f"({now.timestamp()!r}", repr(until.timestamp())) if section.name == FAILED else None

    # -- requeue and discard -------------------------------------------------------------------------

    def decide(self, job: RqJob, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        condition = verdict.condition
        if condition is Condition.STUCK:
            return Decision(_CLEANED_UP)
        if operation.discards:
            return decide_discard(condition, takes_terminal=True)
        if operation.attempts is not Attempts.KEEP:
            return Decision(ATTEMPTS_STAY)
        if job.fields["rate_limit_key"] and condition not in NOT_REQUEUEABLE:
            return Decision(_RATE_LIMITED)
        due = verdict.next_retry_at
        unplanned = job.section.name == SCHEDULED and (verdict.will_run_again is None or due is None)
        why_not = why_not_moved(verdict, operation, waits=unplanned or (due is not None and due > now))
        return self._warned(job) if why_not is None else Decision(why_not)

    def _warned(self, job: RqJob) -> Decision:
        requeued = predict(QUEUE, self._queue_of(job))
        if not requeued.runs:
            return Decision(warning=Notice(requeued.why))
        return Decision(warning=None if job.number("retries_left") else ONE_MORE_TRY)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:  # noqa: ARG002
        before = JobImage(*change.before)
        name, queue = _split(before.place)
        if operation.discards:
            score = repr(float(int(at.timestamp())))
            return before._replace(place=f"{CANCELED}:{queue}", score=score, status="canceled")
        began, ended = ("", "") if name == FAILED else (before.started_at, before.ended_at)
        return JobImage(f"{QUEUE}:{queue}", None, "queued", _shown(at), began, ended, before.kept)

    def move(self, change: Change) -> Move:
        before, after = JobImage(*change.before), JobImage(*change.after)
        values = written_values(before.written, after.written)
        return Move(
            raw(self.id_in(change.keys[0])), (guard(before.written, before.kept), (before.score or "").encode()),
            (*_way(before.place, after.place, after.score), *values),
        )

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        return {name: value for name, value in JobImage(*image)._asdict().items() if name != "kept"}


@lru_cache(maxsize=1_024)
def _sections(queue: str) -> dict[str, Section]:
    """The sections of one queue by name."""
    both = frozenset({Condition.RETRYING, Condition.WAITING})
    one = {condition: frozenset({condition}) for condition in Condition}
    zset = Shape.SORTED_SET
    declared = (
        (WIP, f"rq:wip:{queue}", zset, one[Condition.RUNNING] | one[Condition.STUCK], False),
        (FAILED, f"rq:failed:{queue}", zset, one[Condition.TERMINAL], True),
        (SCHEDULED, f"rq:scheduled:{queue}", zset, both, False),
        (TAKEN, f"{_QUEUE_PREFIX}{queue}:intermediate", Shape.LIST, one[Condition.RUNNING], False),
        (QUEUE, f"{_QUEUE_PREFIX}{queue}", Shape.LIST, both, False),
        (DEFERRED, f"rq:deferred:{queue}", zset, one[Condition.WAITING], True),
        (FINISHED, f"rq:finished:{queue}", zset, one[Condition.DONE], True),
        (CANCELED, f"rq:canceled:{queue}", zset, one[Condition.CANCELLED], True),
    )
    return {
        name: Section(rank, queue, name, key, shape, conditions, falling, due=name == SCHEDULED)
        for rank, (name, key, shape, conditions, falling) in enumerate(declared)
    }


@lru_cache(maxsize=16)
def _shown(at: datetime) -> str:
    """A time as RQ writes it. All jobs of a chunk have the same."""
    return f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"


@lru_cache(maxsize=64)
def _way(source: str, target: str, score: str | None) -> tuple[str, ...]:
    """The arguments of the script: a job's place, and the one where it goes."""
    (name, queue), (target_name, target_queue) = _split(source), _split(target)
    here, there = _sections(queue)[name], _sections(target_queue)[target_name]
    # Only failed jobs expire: at the time that is their score.
    expires = instant(float(score)) if score and target_name == FAILED else None
    until = "" if expires is None else str(int(expires.timestamp()))
    return (here.shape.value, here.key, there.shape.value, there.key, score or "", until)


def _split(place: str) -> tuple[str, str]:
    """The registry or list of a place, and its queue."""
    name, _, queue = place.partition(":")
    return name, queue


_NOWHERE = Section(99, "", "nowhere", "", Shape.SORTED_SET, frozenset())


def _implied_by(section: Section) -> str:
    return QUEUE if section.name == TAKEN else section.name


def _job_of(section: Section, member: bytes) -> bytes:
    """The job of a member. A running job is listed by its execution."""
    return member.rpartition(b":")[0] or member if section.name == WIP else member


def _has_expired(job: RqJob, now: float) -> bool:
    return job.section.name in (FAILED, FINISHED) and job.score is not None and 0 <= job.score <= now
