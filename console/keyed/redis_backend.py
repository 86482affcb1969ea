"""The contract over a queue in Redis. A plugin declares its sections, reads jobs and says how one is moved."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from console.core.action_rules import NOT_STORABLE, Decision
from console.core.advice import Notice
from console.core.backend import (
    APPLIED,
    COUNT_CAP,
    Abilities,
    Authority,
    Buckets,
    Change,
    Count,
    Draft,
    ErrorBatch,
    Finding,
    Histogram,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
    Severity,
    Timeline,
    total_of,
)
from console.core.capabilities import FoundQueue
from console.core.excerpt import excerpt
from console.core.faults import NoSuchItem, ReadOnlyRefused
from console.core.item import Condition, Detail, Item, ItemKey, Verdict
from console.core.policy import PolicyOverride, RetryPolicy
from console.core.ports import Clock, Stop
from console.core.query import Cursor, Field, Filter, Sort
from console.core.signature import signature_of
from console.keyed.marks import GuardedScript, Move, Moved, eviction_policy, mark_key, mark_of, may_evict, settled
from console.keyed.reader import BATCH, KeyedReader, Walk, capped
from console.keyed.redis_checks import clock_finding, privileges_finding, version_finding
from console.keyed.redis_server import RedisServer, raw
from console.keyed.sections import Member, Section, Shape, members, scored

_LOOKUP = 500
LARGEST_WRITE = 500
"""A script stops the whole server: by so many jobs for less than about 10 ms."""
_SCANS = 200
_SURE = 1_000
"""A section with at most this many members is counted member by member."""
_SAMPLE = 400
_COSTLY = 20_000
CHANGED = Outcome(OutcomeKind.CHANGED_SINCE, "changed by its system since the plan")
SCATTERED = Notice(
    "The server is a cluster and the keys of this system are in several slots: no script can change them safely."
)
GONE_SINCE = Outcome(OutcomeKind.CHANGED_SINCE, "no longer there")
_OUTCOMES = {Moved.APPLIED: APPLIED, Moved.CHANGED: CHANGED, Moved.GONE: GONE_SINCE}


class Job(Protocol):
    """What the kit needs to know of a job that a plugin has read."""

    @property
    def id(self) -> str: ...

    @property
    def section(self) -> Section:
        """The place where it is."""

    @property
    def error(self) -> str | None:
        """The whole text of its last error."""

    @property
    def updated(self) -> Any:
        """When anything last happened to it, as the backend's `instant_of` reads it."""

    @property
    def image(self) -> Image | None:
        """The before-image; None if a plan cannot keep one of its values."""


J = TypeVar("J", bound=Job)


def _has_key(server: RedisServer, sign: str) -> bool:
    """Whether there is such a key. A pattern is looked for in a part of a large server only."""
    if "*" not in sign:
        return bool(server.call("EXISTS", sign))
    cursor: Any = 0
    for _ in range(_SCANS):
        cursor, found = server.call("SCAN", cursor, "MATCH", sign, "COUNT", 1_000)
        if found or int(cursor) == 0:
            return bool(found)
    return False


class RedisBackend(KeyedReader[J], Generic[J]):
    """A queue in Redis."""

    plugin: str
    abilities: Abilities
    sorts = frozenset[Any]()
    scan_limit = 20_000
    script: ClassVar[GuardedScript]
    library: ClassVar[str]
    """The library's name, as people write it."""
    schemes = ("redis", "rediss", "unix")
    signs: ClassVar[tuple[str, ...]] = ()
    """Keys that only this library makes, by which `retriage attach` recognises it. A `*` stands for any characters."""
    own_policy: ClassVar[RetryPolicy]
    """What this library does by itself. The `policy:` section of the config changes parts of it."""

    @classmethod
    def open(cls, name: str, options: Any, policy: PolicyOverride, *, read_only: bool, deadline: timedelta) -> Self:
        """Attach to the server at `options.url`."""
        server = RedisServer(options.url, read_only=read_only, deadline=deadline)
        return cls(name, server, policy.over(cls.own_policy), options, read_only=read_only)

    def __init__(
        self, name: str, server: RedisServer, policy: RetryPolicy, options: Any, *, read_only: bool
    ) -> None:
        del options  # each plugin reads its own
        self.name = name
        self.server = server
        self.place = server.place
        self.policy = policy
        self.read_only = read_only

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        """This library's queues on a server: one backend reads them all."""
        server = RedisServer(url, read_only=True, deadline=deadline)
        try:
            found = any(_has_key(server, sign) for sign in cls.signs)
        finally:
            server.close()
        return [FoundQueue(cls.plugin, f"{cls.library} on Redis", {"url": url})] if found else []

    # -- what a plugin declares --------------------------------------------------------------------

    @abstractmethod
    def sections(self) -> list[Section]:
        """The sections of all queues, in the default order."""

    def members_of(self, section: Section, after: Member | None, forward: bool) -> Iterator[list[Member]]:
        """The members of a section from one on, in batches."""
        return members(self.server, section, after, forward)

    @abstractmethod
    def load(self, section: Section, found: Sequence[Member]) -> list[J | None]:
        """The jobs behind these members; None for one that is listed elsewhere or is gone."""

    def load_brief(self, section: Section, found: Sequence[Member]) -> list[J | None]:
        """The same without what only an item shows, if that is faster: verdicts, plans and causes do not need it."""
        return self.load(section, found)

    @abstractmethod
    def find(self, ids: Sequence[str]) -> dict[str, J]:
        """Jobs by their ids, wherever they are now."""

    @abstractmethod
    def judge(self, job: J, now: datetime) -> tuple[Verdict, str | None]:
        """The verdict, and the excerpt of the error that it looked at."""

    @abstractmethod
    def decide(self, job: J, verdict: Verdict, operation: Operation, now: datetime) -> Decision:
        """Whether a job is requeued or discarded: why it is skipped, or else what to warn of."""

    def move(self, change: Change) -> Move:
        """A change as the script gets it, if the plan is enough to make it. Otherwise the plugin overrides `moves`."""
        raise NotImplementedError

    def moves(self, changes: Sequence[Change]) -> Sequence[Move | Outcome]:
        """Each change as the script gets it; an outcome instead for one whose job is known to have changed."""
        return [self.move(change) if raw(self.id_in(change.keys[0])) else GONE_SINCE for change in changes]

    @abstractmethod
    def details(self, job: J, item: Item) -> Detail:
        """Everything that is known of a job."""

    # -- reading -----------------------------------------------------------------------------------

    def now(self) -> datetime:
        return self.server.now()

    def walk(self, walk: Walk) -> Iterator[tuple[J, Cursor]]:
        forward, load = walk.sort.descending != walk.backward, self.load_brief if walk.brief else self.load
        wanted = [section for section in self.sections() if not section.conditions.isdisjoint(walk.conditions)]
        at = None if walk.after is None else (walk.after.key[0], walk.after.key[1])
        for section in wanted if forward else reversed(wanted):
            after = None
            if walk.after is not None and at is not None:
                if section.order < at if forward else section.order > at:
                    continue
                if section.order == at:
                    name, score = walk.after.key[2], walk.after.value
                    assert isinstance(name, bytes)
                    assert isinstance(score, float)
                    after = Member(name, score)
            seen: set[str] = set()
            for batch in self.members_of(section, after, forward):
                for member, job in zip(batch, load(section, batch), strict=True):
                    if job is not None and job.id not in seen:
                        if section.shape is Shape.LIST:
                            seen.add(job.id)
                        yield job, member.cursor(section)

    def lookup(self, keys: Sequence[ItemKey]) -> Mapping[ItemKey, J]:
        ids = list(dict.fromkeys(id for key in keys if key.backend == self.name and raw(id := self.id_in(key))))
        found: dict[str, J] = {}
        for start in range(0, len(ids), _LOOKUP):
            found |= self.find(ids[start : start + _LOOKUP])
        return {self.key_for(id): found[id] for id in ids if id in found}

    def id_in(self, key: ItemKey) -> str:
        """The id of the job with this key; empty for a key that no job can have."""
        return key.parts[0] if len(key.parts) == 1 else ""

    def key_for(self, id: str) -> ItemKey:
        return ItemKey(self.name, (id,))

    def item(self, key: ItemKey, now: datetime) -> Detail:
        job = self.lookup([key]).get(key)
        if job is None:
            raise NoSuchItem(str(key))
        return self.details(job, self.to_item(job, now))

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        if cap is None or filter.without(Field.CONDITION).terms:
            return super().counts(filter, now, cap)
        wanted = filter.conditions()
        sections = [section for section in self.sections() if not section.conditions.isdisjoint(wanted)]
        sizes = [int(size) for size in self.server.pipeline([section.size for section in sections])]
        found: dict[Condition, list[Count]] = {condition: [] for condition in wanted}
        for section, size in zip(sections, sizes, strict=True):
            for condition, count in self._section_counts(section, size, now).items():
                if condition in found:
                    found[condition].append(count)
        return {condition: _limited(total_of(counts), cap) for condition, counts in found.items()}

    def _section_counts(self, section: Section, size: int, now: datetime) -> Mapping[Condition, Count]:
        """By looking at each member if they are few; else by the size of the section, or by a sample of it."""
        if size <= _SURE:
            batches = self.members_of(section, None, True)
            jobs = [job for batch in batches for job in self.load_brief(section, batch) if job is not None]
            unique = {job.id: job for job in jobs}.values()
            found = Counter(self.condition(job, now) for job in unique)
            return {condition: Count(number) for condition, number in found.items()}
        if len(section.conditions) == 1:
            (condition,) = section.conditions
            return {condition: Count(size)}
        jobs = [job for job in self.load_brief(section, self._sample(section)) if job is not None]
        found = Counter(self.condition(job, now) for job in jobs)
        scale = size / max(found.total(), 1)
        return {c: Count(round(number * scale), exact=False, estimated=True) for c, number in found.items()}

    def _sample(self, section: Section) -> list[Member]:
        match section.shape:
            case Shape.LIST | Shape.SET:
                return next(self.members_of(section, None, True), [])
            case Shape.SORTED_SET:
                return scored(self.server.call("ZRANDMEMBER", section.key, _SAMPLE, "WITHSCORES"))

    def possible(self, entry: J) -> frozenset[Condition]:
        return entry.section.conditions

    def whole_error(self, entry: J, item: Item) -> str | None:  # noqa: ARG002  the contract passes it
        return entry.error

    def condition(self, entry: J, now: datetime) -> Condition:
        possible = self.possible(entry)
        return next(iter(possible)) if len(possible) == 1 else self.judge(entry, now)[0].condition

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        """Without making an item of each job, unless the filter looks at more than conditions."""
        if filter.without(Field.CONDITION).terms:
            yield from super().errors(filter, now, stop)
            return
        wanted = filter.conditions()
        for section in self.sections():
            if section.conditions.isdisjoint(wanted):
                continue
            sure, seen = section.conditions <= wanted, set[str]()
            for batch in self.members_of(section, None, True):
                if stop.requested:
                    return
                jobs = [job for job in self.load_brief(section, batch) if job is not None]
                if section.shape is Shape.LIST:
                    jobs = [job for job in {job.id: job for job in jobs}.values() if job.id not in seen]
                    seen.update(job.id for job in jobs)
                rows = [self.failure(job) for job in jobs if sure or self.condition(job, now) in wanted]
                if rows:
                    yield ErrorBatch(rows, self.instant_of)

    def failure(self, job: J) -> tuple[str | None, Any]:
        """The excerpt of a job's error and when the job was last updated, as `instant_of` reads it."""
        error = job.error
        return None if error is None else excerpt(error), job.updated

    def instant_of(self, raw: Any) -> datetime | None:
        found: datetime | None = raw
        return found

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        wanted = filter.conditions()
        sections = [s for s in self.sections() if s.due and not s.conditions.isdisjoint(wanted)]
        scored = all(section.conditions <= wanted for section in sections)
        if timeline is not Timeline.NEXT_RETRY or filter.without(Field.CONDITION).terms or not scored:
            return super().histogram(timeline, filter, now, buckets)
        times = [(buckets.start + buckets.width * n).timestamp() for n in range(buckets.number + 1)]
        totals = [0] * (buckets.number + 2)
        for section in sections:
            edges = [at * section.unit for at in times]
            spans = [("(0", f"({edges[0]!r}"), *((repr(low), f"({high!r}") for low, high in pairwise(edges))]
            spans.append((repr(edges[-1]), "+inf"))
            replies = self.server.pipeline([("ZCOUNT", section.key, low, high) for low, high in spans])
            totals = [total + int(reply) for total, reply in zip(totals, replies, strict=True)]
        return Histogram(buckets.start, buckets.width, tuple(totals[1:-1]), totals[0], totals[-1])

    def expiring_scores(self, section: Section, now: datetime, until: datetime) -> tuple[str, str] | None:
        """The lowest and highest score of the members that the system deletes until then; None if it deletes none."""
        del section, now, until
        return None

    def expiring(self, now: datetime, within: timedelta) -> Count | None:
        spans = [(each.key, self.expiring_scores(each, now, now + within)) for each in self.sections()]
        commands = [("ZCOUNT", key, *scores) for key, scores in spans if scores is not None]
        return Count(sum(map(int, self.server.pipeline(commands)))) if commands else None

    def is_costly(self, now: datetime) -> bool:  # noqa: ARG002  the contract passes it
        return sum(map(int, self.server.pipeline([section.size for section in self.sections()]))) > _COSTLY

    def cancel(self) -> None:
        self.server.cancel()

    def close(self) -> None:
        self.server.close()

    # -- writing -----------------------------------------------------------------------------------

    def drafter(
        self, wanted: Sequence[ItemKey] | Filter, operation: Operation, now: datetime  # noqa: ARG002
    ) -> Callable[[J, Item | None], Draft]:
        def draft(job: J, made: Item | None) -> Draft:
            verdict, error = self.judge(job, now) if made is None else (made.verdict, made.error)
            skipped, warning = self.decide(job, verdict, operation, now)
            image = job.image
            if skipped is None and image is None:
                skipped, warning = NOT_STORABLE, None
            if self.is_scattered:
                skipped = SCATTERED
            signature = signature_of(error) if error else None
            return Draft(str(self.key_for(job.id)), "", image, verdict.condition, signature, skipped, warning)

        return draft

    def selected(
        self, wanted: Filter, now: datetime, sort: Sort, stop: Stop
    ) -> Iterator[Sequence[tuple[J, Item | None]]]:
        """Without making an item of each job, unless the filter looks at more than conditions."""
        if wanted.without(Field.CONDITION).terms:
            yield from super().selected(wanted, now, sort, stop)
            return
        conditions = wanted.conditions()
        jobs = (job for job, _ in self.walk(Walk(conditions, sort, brief=True)))
        while not stop.requested and (batch := list(islice(jobs, BATCH))):
            yield [(job, None) for job in batch if self.condition(job, now) in conditions]

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority  # noqa: ARG002
    ) -> Sequence[Outcome]:
        if self.read_only or self.is_scattered:
            raise ReadOnlyRefused("" if self.read_only else SCATTERED.text, where=self.place)
        wanted = self.moves(changes)
        moves = [one for one in wanted if isinstance(one, Move)]
        left_out = [
            raw(self.id_in(change.keys[0]))
            for change, one in zip(changes, wanted, strict=True) if isinstance(one, Outcome)
        ]
        moved: Sequence[Moved] = ()
        if moves or authority.at is not None:
            moved = self.script.run(self.server, mark_of(authority, self.tag), moves, left_out)
        replies = iter(moved)
        return [one if isinstance(one, Outcome) else _OUTCOMES[next(replies)] for one in wanted]

    @property
    def tag(self) -> str:
        """The part of the keys in braces, which puts them into one slot of a cluster."""
        return ""

    @cached_property
    def is_scattered(self) -> bool:
        """Whether the server is a cluster in which one script cannot reach all keys of this system."""
        return not self.tag and self.server.info("cluster").get("cluster_enabled") == "1"

    def planned(self, changes: Sequence[Change]) -> list[J | None]:
        """The jobs of these changes as they are now."""
        found = self.lookup([change.keys[0] for change in changes])
        return [found.get(change.keys[0]) for change in changes]

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        return [None if job is None else job.image for job in self.planned(changes)]

    def were_written(self, changes: Sequence[Change], at: datetime, override_id: str) -> Sequence[bool | None]:
        mark = mark_key(override_id, at, self.tag)
        names = [raw(self.id_in(change.keys[0])) for change in changes]
        return settled(self.server, mark, names, at, read_only=self.read_only)

    # -- check -------------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        return [
            self._schema(),
            Finding(Severity.WARNING, "guard", SCATTERED.text, "Use a prefix with a hash tag, such as {bull}.")
            if self.is_scattered
            else Finding(Severity.OK, "guard", "one script compares and changes each job"),
            clock_finding(self.server, clock),
            self._persistence(),
            *self._memory(),
            privileges_finding(self.server, read_only=self.read_only),
            *self.own_findings(),
        ]

    def own_findings(self) -> Sequence[Finding]:
        """What else `check` says about this system."""
        return ()

    def _schema(self) -> Finding:
        if (old := version_finding(self.server)) is not None:
            return old
        queues = sorted({section.queue for section in self.sections() if section.queue})
        if not queues:
            fix = f"Check the URL and its database number. {self.library} creates a queue with its first job."
            return Finding(Severity.WARNING, "schema", f"no {self.library} queue was found", fix)
        return Finding(Severity.OK, "schema", f"{self.library} queues: {', '.join(queues)}")

    def _persistence(self) -> Finding:
        info = self.server.info("persistence")
        if info.get("aof_enabled") == "1":
            return Finding(Severity.OK, "persistence", "the append-only file is on")
        return Finding(
            Severity.WARNING, "persistence",
            "the append-only file is off: a requeue can be lost, or happen twice, if the server crashes",
            "Set appendonly to yes.",
        )

    def _memory(self) -> Iterator[Finding]:
        if may_evict(self.server):
            policy = eviction_policy(self.server)
            yield Finding(
                Severity.WARNING, "memory",
                f"maxmemory-policy is {policy}: the server may delete jobs, and the proof of what a crash left",
                "Set maxmemory-policy to noeviction.",
            )


def _limited(count: Count, cap: int) -> Count:
    return capped(count.value, cap) if count.exact or count.value > cap else count
