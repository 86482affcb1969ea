"""The plugin contract over the sets and queues of Sidekiq."""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from threading import Lock
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
    Finding,
    Flag,
    Image,
    Operation,
    Outcome,
    Severity,
    UndoKind,
)
from console.core.item import Condition, Detail, Item, ItemKey, Verdict
from console.core.policy import RetryPolicy
from console.core.text import parse_duration
from console.keyed.marks import TOGETHER, GuardedScript, Move
from console.keyed.redis_backend import CHANGED, GONE_SINCE, LARGEST_WRITE, RedisBackend
from console.keyed.redis_server import Command, RedisServer, instant, raw, text
from console.keyed.sections import Member, Section, Shape, members, members_at
from plugins.sidekiq import jobs, payload
from plugins.sidekiq.jobs import SidekiqJob, SidekiqRows
from plugins.sidekiq.prediction import DEAD, QUEUE, RETRY, SCHEDULE, WORK, predict

_STATE_LIFE = 1.0
_REMEMBERED = 50_000
_RUNNING = 5_000
"""How many jobs that were seen running are remembered."""
_SEARCHED = 200_000
"""How many members are looked at to find jobs whose place is not known."""
_HEAD = 5_000
_LISTED = 512
"""In larger batches the places of the jobs are not remembered: no list on a screen is that long."""
_JID = re.compile(rb'"jid"\s*:\s*"([^"\\]+)"')
_SPARE = 0.9
ABILITIES = Abilities(
    actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
    attempts=frozenset(Attempts),
    undo=UndoKind.EXACT,
    stores_due_time=False,
    largest_write=LARGEST_WRITE,
    guard=("place", "score", *jobs.WRITTEN, "rest"),
    flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
    discard=DiscardAbility(UndoKind.NONE, deletes=True, takes_terminal=True),
    deletes_finished=Deletion(keeps_failed=timedelta(days=180)),
)
_UNREADABLE = Notice("Its data is not a Sidekiq job, so it is not touched.")
_LOST = Notice("Its process has stopped reporting. No list holds its data, so it cannot be moved.")
_KILLED = Notice("Goes to the dead set, and can still be requeued from there.")
MIDDLEWARE = Notice("Sidekiq's client middleware does not see requeued jobs.")
CHANGE = """
-- take a job out of the place where it is; those in a sorted set are taken together afterwards
local function taken(member, from, shape, wanted, score)
  if shape == 'zset' then return score and tonumber(score) == tonumber(wanted) end
  -- what was pushed last is found first
  return redis.call('LREM', from, 1, member) == 1
end

local function fits(from, from_shape, to, to_shape)
  local found = redis.call('TYPE', to).ok
  return redis.call('TYPE', from).ok == from_shape and (to_shape == 'none' or found == to_shape or found == 'none')
end

-- jobs that go the same way, by their numbers
-- a move: its jid, the member, its score, the new member
-- shared: shape and key where it is; shape, key, score and queue where it goes
local function move(some, moves, shared, results)
  local from_shape, from, to_shape, to, to_score, queue = unpack(shared)
  local members, scores, gone, new, done = {}, {}, {}, {}, {}
  for i = 1, #some do
    members[i], results[some[i]] = moves[some[i]][3], 0
  end
  if not fits(from, from_shape, to, to_shape) then return end
  if from_shape == 'zset' then scores = redis.call('ZMSCORE', from, unpack(members)) end
  for i = 1, #some do
    local member, args = members[i], moves[some[i]]
    if not done[member] and taken(member, from, from_shape, args[4], scores[i]) then
      done[member], gone[#gone + 1], new[#new + 1], results[some[i]] = true, member, args[5], 1
    end
  end
  if #gone == 0 then return end
  if from_shape == 'zset' then redis.call('ZREM', from, unpack(gone)) end
  if to_shape == 'list' then
    redis.call('SADD', 'queues', queue)
    redis.call('LPUSH', to, unpack(new))
  elseif to_shape == 'zset' then
    for i = 1, #new do redis.call('ZADD', to, to_score, new[i]) end
  end
end
"""


def _duration(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """`redis://host:6379/0`, `rediss://…` or `unix:///path/to/socket?db=0`."""
    dead_timeout: Annotated[timedelta, BeforeValidator(_duration)] = Field(timedelta(days=180), gt=timedelta(0))
    """How long Sidekiq keeps dead jobs (its `dead_timeout_in_seconds`)."""
    dead_max: int = Field(default=10_000, gt=0)
    """How many dead jobs Sidekiq keeps (its `dead_max_jobs`)."""


class JobImage(NamedTuple):
    """The image of a job."""

    place: str
    """Its set, or `queue`. The name of the queue is part of the digest."""
    score: str | None
    retry_count: str | None
    """As it is written in its JSON."""
    enqueued_at: str | None
    rest: str
    """A digest of the rest of its JSON."""


class ServerState(NamedTuple):
    """What is known of the server besides the jobs."""

    queues: tuple[str, ...]
    processes: Mapping[bytes, bool]
    """Identity → whether it still reports."""
    served: frozenset[str]
    """The queues that a process takes jobs from."""


class SidekiqQueues(RedisBackend[SidekiqJob]):
    """The jobs of Sidekiq on one Redis server."""

    options = Options
    plugin = "sidekiq"
    library = "Sidekiq"
    signs = ("stat:processed", "stat:failed", "processes")
    abilities = ABILITIES
    own_policy = RetryPolicy(max_attempts=26)
    script = GuardedScript(CHANGE + TOGETHER, own=3, shared=6)

    @classmethod
    def systems(cls) -> Mapping[str, Abilities]:
        return {"Sidekiq (Ruby) on Redis": ABILITIES}

    def __init__(
        self, name: str, server: RedisServer, policy: RetryPolicy, options: Options, *, read_only: bool
    ) -> None:
        super().__init__(name, server, policy, options, read_only=read_only)
        self._rows = SidekiqRows(name, policy, options.dead_timeout)
        self._dead_timeout = options.dead_timeout
        self._dead_max = options.dead_max
        self._state: ServerState | None = None
        self._read_at = float("-inf")
        self._places: OrderedDict[str, tuple[Section, bytes]] = OrderedDict()
        """Where jobs were last, so that they are found without a search."""
        self._running: OrderedDict[str, tuple[bytes, SidekiqJob]] = OrderedDict()
        """The jobs that were seen while they ran, each with its process. A killed process loses its jobs."""
        self._lock = Lock()

    # -- sections ------------------------------------------------------------------------------------

    def _known_state(self) -> ServerState:
        if self._state is None or time.monotonic() - self._read_at > _STATE_LIFE:
            queues, names = self.server.pipeline([("SMEMBERS", "queues"), ("SMEMBERS", "processes")])
            infos = self.server.pipeline([("HGET", name, "info") for name in names])
            alive = {name: info is not None for name, info in zip(names, infos, strict=True)}
            served = {queue for info in infos if info is not None for queue in _queues_in(info)}
            self._state = ServerState(tuple(sorted(map(text, queues))), alive, frozenset(served))
            self._read_at = time.monotonic()
        return self._state

    def sections(self) -> list[Section]:
        queues = [_queue_section(queue) for queue in self._known_state().queues]
        return [_SECTIONS[WORK], _SECTIONS[DEAD], _SECTIONS[RETRY], *queues, _SECTIONS[SCHEDULE]]

    def members_of(self, section: Section, after: Member | None, forward: bool) -> Iterator[list[Member]]:
        if section.name != WORK:
            yield from members(self.server, section, after, forward)
            return
        processes = sorted(self._known_state().processes)
        replies = self.server.pipeline([("HGETALL", process + b":work") for process in processes])
        found = [
            Member(b"\0".join((process, thread, work)), 0.0)
            for process, reply in zip(processes, replies, strict=True)
            for thread, work in zip(reply[::2], reply[1::2], strict=True)
        ]
        found.sort(reverse=not forward)
        if after is not None:
            found = [one for one in found if (one > after if forward else one < after)]
        yield found

    # -- reading jobs --------------------------------------------------------------------------------

    def load(self, section: Section, found: Sequence[Member]) -> list[SidekiqJob | None]:
        read = [self._work(section, one) if section.name == WORK else _job(section, one) for one in found]
        if len(read) > _LISTED:
            return list(read)
        with self._lock:
            for job in read:
                if job.section.name != WORK:
                    self._places[job.id] = section, job.member
                    self._places.move_to_end(job.id)
            self._trim_places()
        return list(read)

    def _trim_places(self) -> None:
        while len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    def _work(self, section: Section, member: Member) -> SidekiqJob:
        process, _, work = member.name.split(b"\0", 2)
        found = payload.parse(text(work)) or {}
        job, since = found.get("payload"), found.get("run_at")
        data = job if isinstance(job, str) else json.dumps(job)
        score = float(since) if isinstance(since, int | float) else 0.0
        queue = found.get("queue")
        alive = self._known_state().processes.get(process, False)
        running = SidekiqJob(section, raw(data), score, queue if isinstance(queue, str) else "", alive)
        with self._lock:
            self._running[running.id] = process, running
            self._running.move_to_end(running.id)
            if len(self._running) > _RUNNING:
                self._running.popitem(last=False)
        return running

    def find(self, ids: Sequence[str]) -> dict[str, SidekiqJob]:
        with self._lock:
            places = {id: self._places[id] for id in ids if id in self._places}
        found = self._still_there(places)
        if wanted := {id for id in ids if id not in found}:
            found |= self._searched(wanted)
        return found | self._lost([id for id in ids if id not in found])

    def _lost(self, ids: Sequence[str]) -> dict[str, SidekiqJob]:
        """Those of these missing jobs that ran in a process that has ended since."""
        with self._lock:
            seen = {id: self._running[id] for id in ids if id in self._running}
        alive = self._known_state().processes if seen else {}
        return {id: replace(job, lost=True) for id, (process, job) in seen.items() if not alive.get(process)}

    def _still_there(self, places: Mapping[str, tuple[Section, bytes]]) -> dict[str, SidekiqJob]:
        commands: list[Command] = [
            ("ZSCORE", section.key, member)
            if section.shape is Shape.SORTED_SET
            else ("LPOS", section.key, member, "MAXLEN", _HEAD)
            for section, member in places.values()
        ]
        replies = self.server.pipeline(commands)
        return {
            id: SidekiqJob(section, member, float(reply))
            for (id, (section, member)), reply in zip(places.items(), replies, strict=True)
            if reply is not None
        }

    def _searched(self, wanted: set[str]) -> dict[str, SidekiqJob]:
        """Look through everything for these jobs, up to a limit."""
        found: dict[str, SidekiqJob] = {}
        looked = 0
        odd = any(id.startswith("unreadable-") or not id.isascii() or '"' in id or "\\" in id for id in wanted)
        for section in self.sections():
            for batch in self.members_of(section, None, True):
                looked += len(batch)
                near = batch if odd or section.name == WORK else [m for m in batch if _names_one(m.name, wanted)]
                for job in self.load(section, near):
                    if job is not None and job.id in wanted:
                        found.setdefault(job.id, job)
                if len(found) == len(wanted) or looked >= _SEARCHED:
                    return found
        return found

    def planned(self, changes: Sequence[Change]) -> list[SidekiqJob | None]:
        """The jobs of these changes, first where the images say that they are."""
        wanted: dict[str, set[float]] = {}
        for change in changes:
            for place, score, *_ in filter(None, (change.before, change.after)):
                if place in (DEAD, RETRY, SCHEDULE):
                    wanted.setdefault(place, set()).add(float(score))
        sections = [(_SECTIONS[place], scores) for place, scores in wanted.items()]
        read = [_job(section, one) for section, scores in sections for one in members_at(self.server, section, scores)]
        found = {job.id: job for job in read}
        others = self.lookup([change.keys[0] for change in changes if self.id_in(change.keys[0]) not in found])
        return [found.get(self.id_in(change.keys[0])) or others.get(change.keys[0]) for change in changes]

    # -- items ---------------------------------------------------------------------------------------

    def to_item(self, entry: SidekiqJob, now: datetime) -> Item:
        return self._rows.item(entry, now, self._known_state().served)

    def judge(self, job: SidekiqJob, now: datetime) -> tuple[Verdict, str | None]:
        return self._rows.judge(job, now, self._known_state().served)

    def references(self, entry: SidekiqJob, item: Item) -> Sequence[str]:
        return (item.type, entry.target)

    def instant_of(self, raw: Any) -> datetime | None:
        return None if raw is None else instant(raw)

    def details(self, job: SidekiqJob, item: Item) -> Detail:
        schedule = []
        if item.verdict.will_run_again and item.condition is Condition.RETRYING:
            schedule.append(f"attempt {item.attempts + 1} {item.verdict.why.rpartition(', ')[2]}")
            schedule.append("then its system decides")
        return Detail(
            item, jobs.full_error(job), jobs.attempts_of(job), tuple(schedule), jobs.native(job),
            (("queue", job.target), ("place", job.section.key)),
        )

    def plan_warnings(self, changes: int) -> Sequence[Notice]:  # noqa: ARG002  whatever their number
        return (MIDDLEWARE,)

    # -- requeue and discard -------------------------------------------------------------------------

    def decide(self, job: SidekiqJob, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        if not job.readable:
            return Decision(_UNREADABLE)
        condition = verdict.condition
        if condition is Condition.STUCK:
            return Decision(_LOST)
        if operation.discards:
            if job.section.name == RETRY:
                return Decision(warning=_KILLED)
            return decide_discard(condition, takes_terminal=True)
        due = verdict.next_retry_at
        waits = job.section.name == RETRY and (due is None or due > now)
        why_not = why_not_moved(verdict, operation, waits=waits)
        return self._warned(job, operation) if why_not is None else Decision(why_not)

    def _warned(self, job: SidekiqJob, operation: Operation) -> Decision:
        requeued = predict(QUEUE, job.target, self._known_state().served)
        if not requeued.runs:
            return Decision(warning=Notice(requeued.why))
        limit = self._rows.limit(job)
        used_up = limit is not None and job.attempts >= limit
        return Decision(warning=ONE_MORE_TRY if used_up and operation.attempts is Attempts.KEEP else None)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:  # noqa: ARG002
        place, _, count, enqueued, rest = change.before
        if operation.discards:
            return JobImage(DEAD, repr(at.timestamp()), count, enqueued, rest) if place == RETRY else GONE
        count = _count_after(count, operation.attempts)
        return JobImage(QUEUE, None, count, _time_like(enqueued, at), rest)

    def moves(self, changes: Sequence[Change]) -> Sequence[Move | Outcome]:
        """The jobs are read first: a new member is made from the present one."""
        found = zip(changes, self.planned(changes), strict=True)
        moves = [
            GONE_SINCE if job is None else self._move(change, job) if job.image == change.before else CHANGED
            for change, job in found
        ]
        with self._lock:
            self._trim_places()
        return moves

    def _move(self, change: Change, job: SidekiqJob) -> Move:
        name, score, source = raw(job.id), repr(job.score).encode(), (job.section.shape.value, job.section.key)
        if change.after == GONE:
            return Move(name, (job.member, score, ""), (*source, "none", "", "", ""))
        place, new_score, *written, _ = change.after
        member = job.payload.edited(dict(zip(jobs.WRITTEN, written, strict=True)))
        queue = job.target
        target = _queue_section(queue) if place == QUEUE else _SECTIONS[place]
        with self._lock:
            self._places[job.id] = target, member
        where = (target.shape.value, target.key, new_score or "", queue)
        return Move(name, (job.member, score, member), (*source, *where))

    def expiring_scores(self, section: Section, now: datetime, until: datetime) -> tuple[str, str] | None:
        del now  # what is overdue is deleted with the next job that dies
        return ("(0", repr((until - self._dead_timeout).timestamp())) if section.name == DEAD else None

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        return {name: value for name, value in JobImage(*image)._asdict().items() if name != "rest"}

    def own_findings(self) -> Sequence[Finding]:
        dead = int(self.server.call("ZCARD", DEAD))
        if dead < self._dead_max * _SPARE:
            return ()
        return [
            Finding(
                Severity.WARNING, "dead set", f"{dead} of {self._dead_max} jobs: Sidekiq deletes the oldest ones next",
                "Requeue or discard dead jobs, or raise dead_max_jobs in Sidekiq and dead_max here.",
            )
        ]


def _job(section: Section, member: Member) -> SidekiqJob:
    return SidekiqJob(section, member.name, member.score)


def _names_one(member: bytes, wanted: set[str]) -> bool:
    return any(text(found) in wanted for found in _JID.findall(member))


def _queues_in(info: bytes) -> list[str]:
    queues = (payload.parse(text(info)) or {}).get("queues")
    return [queue for queue in queues if isinstance(queue, str)] if isinstance(queues, list) else []


def _time_like(before: str | None, at: datetime) -> str:
    """The time as this version of Sidekiq writes it: whole milliseconds, or seconds with a fraction before 8.0."""
    return repr(at.timestamp()) if before is not None and "." in before else str(int(at.timestamp() * 1000))


def _count_after(before: str | None, attempts: Attempts) -> str | None:
    """As Sidekiq's own retry: one less, so that the same number is left. `null` starts the whole schedule again."""
    if before is None or before == "null":
        return before
    if attempts is Attempts.RESET:
        return "null"
    return str(int(before) - 1) if before.lstrip("-").isdecimal() else before


@lru_cache(maxsize=1_024)
def _queue_section(queue: str) -> Section:
    conditions = frozenset({Condition.WAITING, Condition.RETRYING})
    return Section(3, queue, QUEUE, f"queue:{queue}", Shape.LIST, conditions)


_SECTIONS = {
    WORK: Section(
        0, "", WORK, "processes", Shape.SET, frozenset({Condition.RUNNING, Condition.STUCK}), falling=False
    ),
    DEAD: Section(1, "", DEAD, "dead", Shape.SORTED_SET, frozenset({Condition.TERMINAL})),
    RETRY: Section(
        2, "", RETRY, "retry", Shape.SORTED_SET, frozenset({Condition.RETRYING}), falling=False, due=True
    ),
    SCHEDULE: Section(
        4, "", SCHEDULE, "schedule", Shape.SORTED_SET, frozenset({Condition.WAITING}), falling=False, due=True
    ),
}
