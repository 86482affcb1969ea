"""The plugin contract over the queues of BullMQ."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from console.core.action_rules import ONE_MORE_TRY, Decision, decide_discard, why_not_moved
from console.core.advice import Notice
from console.core.backend import (
    GONE,
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
from console.keyed.redis_server import Command, PerKey, RedisServer, raw, text
from console.keyed.sections import Member, Section, Shape
from plugins.bullmq import jobs as bull
from plugins.bullmq.jobs import BullJob, BullRows
from plugins.bullmq.prediction import ACTIVE, CHILDREN, COMPLETED, DELAYED, FAILED, PAUSED, PRIORITIZED, WAIT, predict
from plugins.bullmq.script import CHANGE

ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
    attempts=frozenset(Attempts),
    undo=UndoKind.EXACT,
    stores_due_time=False,
    largest_write=LARGEST_WRITE,
    guard=("place", "score", *bull.WRITTEN, *bull.KEPT),
    flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
    discard=DiscardAbility(UndoKind.NONE, deletes=True, takes_terminal=True),
    deletes_finished=Deletion(keeps_failed=timedelta(hours=1)),
)
_STATE_LIFE = 1.0
_NAMES_LIFE = 300.0
"""Seconds until the queues are searched for again: BullMQ keeps no list of them, so all keys are looked at."""
_SCAN = 5_000
_FLOW = Notice("Part of a flow. Retry it with BullMQ, which also updates its parent.")
_STALLED = Notice("No worker holds it. A running worker moves it back to waiting by itself.")


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """`redis://host:6379/0`, `rediss://…` or `unix:///path/to/socket?db=0`."""
    prefix: str = "bull"
    """What the keys begin with. With a hash tag, such as `{bull}`, it also works in a cluster."""
    queues: tuple[str, ...] = ()
    """The queues to read; all that are found if it is left out."""


class JobImage(NamedTuple):
    """The image of a job."""

    place: str
    score: str | None
    finished_on: str | None
    processed_on: str | None
    attempts_made: str | None
    attempts_started: str | None
    delay: str | None
    lifo: str
    """"1" for a job that is queued before the others. It is among the options that must be unchanged."""
    kept: str
    """A digest of the other fields that must be unchanged."""

    @property
    def written(self) -> tuple[str | None, ...]:
        return self[2:7]


class BullMq(RedisBackend[BullJob]):
    """The queues of BullMQ on one Redis server."""

    options = Options
    plugin = "bullmq"
    library = "BullMQ"
    signs = ("bull:*:meta",)
    abilities = ABILITIES
    own_policy = RetryPolicy(items_have_limits=True)
    script = GuardedScript(CHANGE, own=3, shared=5 + len(bull.WRITTEN))

    @classmethod
    def systems(cls) -> Mapping[str, Abilities]:
        return {"BullMQ (Node.js) on Redis": ABILITIES}

    def __init__(
        self, name: str, server: RedisServer, policy: RetryPolicy, options: Options, *, read_only: bool
    ) -> None:
        super().__init__(name, server, policy, options, read_only=read_only)
        self._prefix = options.prefix
        self._only = options.queues
        self._rows = BullRows(name, policy)
        self._names: tuple[str, ...] = options.queues
        self._searched_at = float("-inf")
        self._paused: Mapping[str, bool] = {}
        self._read_at = float("-inf")

    # -- sections ------------------------------------------------------------------------------------

    @property
    def tag(self) -> str:
        found = re.search(r"\{[^{}]+\}", self._prefix)
        return found[0] if found else ""

    def _queues(self) -> Mapping[str, bool]:
        """The queues, and whether each is paused."""
        now = time.monotonic()
        if not self._only and now - self._searched_at > _NAMES_LIFE:
            self._names = found_queues(self.server, self._prefix)
            # An application that has just started has no queue yet.
            self._searched_at = now if self._names else float("-inf")
        if now - self._read_at > _STATE_LIFE:
            replies = self.server.pipeline([("HGET", f"{self._prefix}:{name}:meta", "paused") for name in self._names])
            self._paused = {name: reply is not None for name, reply in zip(self._names, replies, strict=True)}
            self._read_at = now
        return self._paused

    def sections(self) -> list[Section]:
        return sorted(
            (each for queue in self._queues() for each in self._sections(queue).values()), key=lambda s: s.order
        )

    def _sections(self, queue: str) -> dict[str, Section]:
        both = frozenset({Condition.RETRYING, Condition.WAITING})
        one = {condition: frozenset({condition}) for condition in Condition}
        zset = Shape.SORTED_SET
        declared = (
            (ACTIVE, Shape.LIST, one[Condition.RUNNING] | one[Condition.STUCK], True),
            (FAILED, zset, one[Condition.TERMINAL], True),
            (DELAYED, zset, both, False),
            (PRIORITIZED, zset, both, False),
            (WAIT, Shape.LIST, both, True),
            (PAUSED, Shape.LIST, both, True),
            (CHILDREN, zset, one[Condition.WAITING], True),
            (COMPLETED, zset, one[Condition.DONE], True),
        )
        return {
            name: Section(
                rank, queue, name, f"{self._prefix}:{queue}:{name}", shape, conditions, falling,
                unit=bull.DELAY_UNIT * 1000, due=name == DELAYED,
            )
            for rank, (name, shape, conditions, falling) in enumerate(declared)
        }

    # -- reading jobs --------------------------------------------------------------------------------

    def id_in(self, key: ItemKey) -> str:
        if len(key.parts) != 2 or not all(key.parts) or any("\0" in part for part in key.parts):
            return ""
        return bull.id_for(*key.parts)

    def key_for(self, id: str) -> ItemKey:
        return ItemKey(self.name, bull.parts_of(id))

    def load(self, section: Section, found: Sequence[Member]) -> list[BullJob | None]:
        base = raw(f"{self._prefix}:{section.queue}:")
        replies = self.server.for_each([member.name for member in found], [PerKey.of("HMGET", base, *bull.FIELDS)])
        locks = [1] * len(found)
        if section.name == ACTIVE:
            locks = self.server.pipeline([("EXISTS", base + member.name + b":lock") for member in found])
        return [
            None
            if member.name.startswith(b"0:") and section.name == WAIT  # a marker of older versions, not a job
            else BullJob(
                bull.id_for(section.queue, text(member.name)), section, member.name,
                None if section.shape is Shape.LIST else member.score,
                dict(zip(bull.FIELDS, fields, strict=True)), bool(lock),
            )
            for member, fields, lock in zip(found, replies, locks, strict=True)
        ]

    def find(self, ids: Sequence[str]) -> dict[str, BullJob]:
        queues = self._queues()
        asked: list[tuple[str, Section, bytes, Command]] = []
        for id in ids:
            queue, own = bull.parts_of(id)
            if queue in queues:
                name = raw(own)
                for section in self._sections(queue).values():
                    asked += [(id, section, name, command) for command in section.presence(name)]
        replies = self.server.pipeline([command for *_, command in asked])
        places: dict[str, tuple[Section, Member]] = {}
        for (id, section, name, _), reply in zip(asked, replies, strict=True):
            if reply is not None:
                places.setdefault(id, (section, Member(name, float(reply))))
        found: dict[str, BullJob] = {}
        by_section: dict[tuple[int, str], list[str]] = {}
        for id, (section, _) in places.items():
            by_section.setdefault(section.order, []).append(id)
        for own_ids in by_section.values():
            section = places[own_ids[0]][0]
            loaded = self.load(section, [places[id][1] for id in own_ids])
            found |= {job.id: job for job in loaded if job is not None}
        return found

    # -- items ---------------------------------------------------------------------------------------

    def to_item(self, entry: BullJob, now: datetime) -> Item:
        return self._rows.item(entry, now, self._queues().get(entry.section.queue, False))

    def judge(self, job: BullJob, now: datetime) -> tuple[Verdict, str | None]:
        return self._rows.judge(job, now, self._queues().get(job.section.queue, False))

    def references(self, entry: BullJob, item: Item) -> Sequence[str]:
        return (item.type, entry.section.queue)

    def details(self, job: BullJob, item: Item) -> Detail:
        queue, own = bull.parts_of(job.id)
        traces = bull.traces_in(self.server.call("HGET", raw(f"{self._prefix}:{queue}:{own}"), "stacktrace"))
        schedule = []
        if item.verdict.will_run_again and item.condition is Condition.RETRYING:
            schedule = [f"attempt {item.attempts + 1} {item.verdict.why.rpartition(', ')[2]}"]
            left = job.limit - job.attempts - 1
            schedule += [f"then {left} more attempts"] if left > 0 else []
            schedule.append("then terminal")
        error = job.error
        if error and traces and error in traces[-1]:
            error = traces[-1] if traces[-1].startswith(error) else f"{error}\n{traces[-1]}"
        return Detail(
            item, error, bull.attempts_of(job, traces), tuple(schedule), bull.native(job), (("queue", queue),)
        )

    # -- requeue and discard -------------------------------------------------------------------------

    def decide(self, job: BullJob, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        condition = verdict.condition
        if condition is Condition.STUCK:
            return Decision(_STALLED)
        if job.fields["parentKey"]:
            return Decision(_FLOW)
        if operation.discards:
            return decide_discard(condition, takes_terminal=True)
        waits = job.section.name == DELAYED and (job.due is None or job.due > now)
        why_not = why_not_moved(verdict, operation, waits=waits)
        return self._warned(job, operation) if why_not is None else Decision(why_not)

    def _warned(self, job: BullJob, operation: Operation) -> Decision:
        queue = job.section.queue
        requeued = predict(WAIT, queue, paused=self._queues().get(queue, False))
        if not requeued.runs:
            return Decision(warning=Notice(requeued.why))
        used_up = job.attempts >= job.limit and operation.attempts is Attempts.KEEP
        return Decision(warning=ONE_MORE_TRY if used_up else None)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:  # noqa: ARG002
        before = JobImage(*change.before)
        if operation.discards:
            return GONE
        after = before._replace(place=bull.WAITING, score=None)
        if before.place == DELAYED:
            return after._replace(delay="0")
        after = after._replace(finished_on=None, processed_on=None)
        if operation.attempts is Attempts.RESET:
            after = after._replace(attempts_made=None, attempts_started=None)
        return after

    def move(self, change: Change) -> Move:
        id, before = self.id_in(change.keys[0]), JobImage(*change.before)
        queue, own = bull.parts_of(id)
        what, score, values = "remove", "", ("",) * len(bull.WRITTEN)
        if change.after != GONE:
            after = JobImage(*change.after)
            what, score, values = after.place, after.score or "", written_values(before.written, after.written)
        return Move(
            raw(id), (raw(own), guard(before.written, before.kept), (before.score or "").encode()),
            (f"{self._prefix}:{queue}:", before.place, what, score, before.lifo, *values),
        )

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        return {name: value for name, value in JobImage(*image)._asdict().items() if name not in ("lifo", "kept")}


def found_queues(server: RedisServer, prefix: str) -> tuple[str, ...]:
    """The queues of which a key is stored."""
    found: set[str] = set()
    cursor = b"0"
    start, end = raw(f"{prefix}:"), b":meta"
    pattern = re.sub(r"([\\*?\[\]])", r"\\\1", f"{prefix}:") + "*:meta"
    while True:
        cursor, keys = server.call("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN)
        found.update(text(key[len(start) : -len(end)]) for key in keys)
        if cursor == b"0":
            return tuple(sorted(found))
