"""The life of a cause: its state, owner and notes, and the records that change them.

A cause is new, ongoing, acknowledged, snoozed, resolved or regressed. The state follows from what people recorded on
the trail, from the results of overrides, and from the failures that are there now. Records name the cause by its
signature and never contain error text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from threading import Lock
from typing import Any, NamedTuple, Protocol, assert_never

from console.core.cause_count import Cause
from console.core.confirm import Origin, Who, recorded
from console.core.faults import ReadOnlyRefused, Refused, TrailBroken, UsageFault
from console.core.override import Override
from console.core.ports import Clock, Record, Trail
from console.core.recovery import Result
from console.core.text import instant, is_blank

NEW_FOR = timedelta(hours=24)
"""How long a cause is new."""
RECOVERED_SHARE = 0.95
"""The share of an override's items that must have recovered for it to resolve their cause."""
LONGEST_TEXT = 2_000
CAUSE_KIND, RESULT_KIND = "cause", "result"
"""The kinds of records that tell something about causes."""


class CauseState(StrEnum):
    """Where a cause is in its life."""

    NEW = "new"
    """First seen less than a day ago."""
    ONGOING = "ongoing"
    ACKNOWLEDGED = "acknowledged"
    """Somebody knows about it."""
    SNOOZED = "snoozed"
    """Listed last until a time, until it has doubled, or until it reaches another system."""
    RESOLVED = "resolved"
    REGRESSED = "regressed"
    """It was resolved, and has failed again since."""

    @property
    def is_listed_last(self) -> bool:
        """Whether it is listed below the others."""
        match self:
            case CauseState.ACKNOWLEDGED | CauseState.SNOOZED | CauseState.RESOLVED:
                return True
            case CauseState.NEW | CauseState.ONGOING | CauseState.REGRESSED:
                return False
            case _:
                assert_never(self)


class CauseChange(StrEnum):
    """What a person can record about a cause."""

    ACKNOWLEDGED = "acknowledged"
    SNOOZED = "snoozed"
    RESOLVED = "resolved"
    REOPENED = "reopened"
    """It is no longer acknowledged, snoozed or resolved."""
    ASSIGNED = "assigned"
    NOTED = "noted"


_STATE_CHANGES = frozenset(
    {CauseChange.ACKNOWLEDGED, CauseChange.SNOOZED, CauseChange.RESOLVED, CauseChange.REOPENED}
)


class Snooze(NamedTuple):
    """When a snoozed cause comes back: whichever happens first. At least one is set."""

    until: datetime | None = None
    doubles: bool = False
    """It has twice as many failures as when it was snoozed."""
    another_system: bool = False
    """It fails in a system in which it did not fail when it was snoozed."""

    def __str__(self) -> str:
        ends = [f"{self.until:%Y-%m-%d %H:%M}Z"] if self.until is not None else []
        ends += ["it doubles"] if self.doubles else []
        ends += ["it reaches another system"] if self.another_system else []
        return f"until {' or '.join(ends)}"


@dataclass(frozen=True, slots=True)
class CauseRecord:
    """One change of a cause, as it is recorded."""

    seq: int
    at: datetime
    signature: str
    change: CauseChange
    by: str
    text: str = ""
    """A note, a reason, or the owner's name."""
    snooze: Snooze | None = None
    count: int = 0
    """How many failures there were."""
    backends: frozenset[str] = frozenset()
    """In which systems they were."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """When a cause was resolved, and by whom."""

    seq: int
    at: datetime
    by: str
    """A person, or "override o1f0c (ann)"."""
    count: int = 0
    """How many failures may be left: those that a person saw, or those of the override that did not recover."""
    override_id: str | None = None


class CauseNote(NamedTuple):
    """What somebody wrote about a cause."""

    at: datetime
    by: str
    text: str


@dataclass(frozen=True, slots=True)
class CauseLife:
    """The state of a cause and everything recorded about it."""

    state: CauseState
    since: datetime | None = None
    """When it came into this state; None if that is not known."""
    by: str = ""
    """Who acknowledged, snoozed or resolved it. For a regressed cause: what had resolved it."""
    owner: str = ""
    notes: tuple[CauseNote, ...] = ()
    """Oldest first, with the reasons that were given."""
    snooze: Snooze | None = None
    first_seen: datetime | None = None

    @property
    def detail(self) -> str:
        """The state in one phrase: "acknowledged by bo", "regressed, had been resolved by override o1f0c"."""
        match self.state:
            case CauseState.NEW | CauseState.ONGOING:
                return self.state.value
            case CauseState.ACKNOWLEDGED | CauseState.RESOLVED:
                return f"{self.state.value} by {self.by}"
            case CauseState.SNOOZED:
                return f"snoozed by {self.by} {self.snooze}"
            case CauseState.REGRESSED:
                return f"regressed, had been resolved by {self.by}"
            case _:
                assert_never(self.state)


UNKNOWN_LIFE = CauseLife(CauseState.ONGOING)
"""The life of failures without error text, and of the overflow: nobody can name these causes."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known about the failures of a cause at a time."""

    count: int
    last: datetime | None
    """The latest failure."""
    backends: frozenset[str]
    first: datetime | None
    """The first failure that was ever seen."""
    oldest: datetime | None = None
    """The oldest of the failures that are there."""

    @classmethod
    def of(cls, cause: Cause, first_seen: datetime | None = None) -> Sighting:
        """What the failures of now show. `first_seen` comes from the history, if there is one."""
        firsts = [at for at in (cause.first, first_seen) if at is not None]
        names = frozenset(name for name, count in cause.backends if count)
        return cls(cause.count, cause.last, names, min(firsts, default=None), cause.first)


def life_of(
    sighting: Sighting, records: Sequence[CauseRecord], resolutions: Sequence[Resolution], now: datetime
) -> CauseLife:
    """The state of a cause at `now`. Records and resolutions are those of this cause, in the order of the trail.

    The order counts, not the times: the clock may have been set back between two records.
    """
    owner = next((record.text for record in reversed(records) if record.change is CauseChange.ASSIGNED), "")
    notes = tuple(
        CauseNote(record.at, record.by, record.text)
        for record in records if record.text and record.change is not CauseChange.ASSIGNED
    )
    last = next((record for record in reversed(records) if record.change in _STATE_CHANGES), None)
    resolved = next((one for one in reversed(resolutions) if not _left_others(sighting, one)), None)
    if last is not None and (resolved is None or last.seq > resolved.seq):
        by_hand = last.change is CauseChange.RESOLVED
        resolved = Resolution(last.seq, last.at, last.by, last.count) if by_hand else None
    state, since, by, snooze = CauseState.ONGOING, sighting.first, "", None
    if resolved is not None:
        again = _seen_again(sighting, resolved)
        state, by = CauseState.REGRESSED if again else CauseState.RESOLVED, resolved.by
        since = _back_since(sighting, resolved) if again else resolved.at
    elif last is not None and last.change is CauseChange.ACKNOWLEDGED:
        state, since, by = CauseState.ACKNOWLEDGED, last.at, last.by
    elif last is not None and last.snooze is not None and not _snooze_is_over(sighting, last, last.snooze, now):
        state, since, by, snooze = CauseState.SNOOZED, last.at, last.by, last.snooze
    elif sighting.first is not None and now - sighting.first < NEW_FOR:
        state = CauseState.NEW
    return CauseLife(state, since, by, owner, notes, snooze, sighting.first)


def _left_others(sighting: Sighting, resolved: Resolution) -> bool:
    """Whether an override resolved nothing: more failures are here than it left, and none is newer than its result.

    It was about some of them only, or others came before its result was known.
    """
    if resolved.override_id is None or sighting.last is None or sighting.last > resolved.at:
        return False
    return sighting.count > resolved.count


def _seen_again(sighting: Sighting, resolved: Resolution) -> bool:
    """Whether it has failed since. Failures that were there and stayed are not new ones."""
    if sighting.last is not None:
        return sighting.count > 0 and sighting.last > resolved.at
    return sighting.count > resolved.count


def _back_since(sighting: Sighting, resolved: Resolution) -> datetime | None:
    """When it failed again at the latest. None if only older failures or no times are known: the latest failure is no
    answer, because it is another one every minute."""
    oldest = sighting.oldest
    return oldest if oldest is not None and oldest > resolved.at else None


def _snooze_is_over(sighting: Sighting, record: CauseRecord, snooze: Snooze, now: datetime) -> bool:
    if snooze.until is not None and now >= snooze.until:
        return True
    if snooze.doubles and sighting.count >= 2 * max(record.count, 1):
        return True
    return snooze.another_system and bool(sighting.backends - record.backends)


# --- records ----------------------------------------------------------------------------------------


def body_of(record: CauseRecord) -> dict[str, Any]:
    """What the trail stores of a change, besides who made it and when."""
    body: dict[str, Any] = {
        "cause": record.signature, "change": record.change.value, "count": record.count,
        "backends": sorted(record.backends),
    }
    if record.text:
        body["text"] = record.text
    if record.snooze is not None:
        until, doubles, another_system = record.snooze
        body["snooze"] = {
            "until": None if until is None else instant(until), "doubles": doubles, "another_system": another_system,
        }
    return body


def cause_record_of(stored: Record) -> CauseRecord:
    """Read a record of the trail. `TrailBroken` if it is none of ours."""
    try:
        body = stored.body
        snooze = None
        if (given := body.get("snooze")) is not None:
            until = None if given["until"] is None else datetime.fromisoformat(given["until"])
            snooze = Snooze(until, bool(given["doubles"]), bool(given["another_system"]))
        return CauseRecord(
            stored.seq, stored.at, str(body["cause"]), CauseChange(body["change"]), str(body["by"]),
            str(body.get("text", "")), snooze, int(body["count"]), frozenset(map(str, body["backends"])),
        )
    except (KeyError, TypeError, ValueError):
        raise TrailBroken(f"record {stored.seq} cannot be read") from None


def resolutions_of(result: Mapping[str, Any], confirmed: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The causes that an override has resolved: at least 95 % of their items recovered, and none is outstanding. With
    each, how many of its items may have failed still.

    `result` is the body of its result record, `confirmed` that of its confirmation. The result does not say which items
    recovered, so all items of the plan that did not recover count against each of its causes.
    """
    counts, causes = result.get("results"), confirmed.get("causes")
    if not isinstance(counts, Mapping) or not isinstance(causes, Mapping):
        return
    if any(counts.get(outstanding) for outstanding in (Result.RUNNING, Result.NOT_RUN_YET)):
        return
    missing = confirmed.get("items", 0) - counts.get(Result.RECOVERED, 0)
    for signature, items in causes.items():
        if items - missing >= RECOVERED_SHARE * items > 0:
            yield signature, missing


class CauseRecords(Protocol):
    """The part of the trail that the states of causes are read from."""

    def records_of(self, kinds: Sequence[str], *, after: int = 0, limit: int = 1_000) -> Sequence[Record]: ...

    def override(self, override_id: str) -> Override: ...


class CauseLives:
    """The states of all causes, read from the trail. Reading is cheap to repeat: only new records are read."""

    def __init__(self, records: CauseRecords, clock: Clock) -> None:
        self._stored = records
        self._clock = clock
        self._seq = 0
        self._records: dict[str, list[CauseRecord]] = {}
        self._resolutions: dict[str, list[Resolution]] = {}
        self._lock = Lock()

    def read(self) -> None:
        """Read what was recorded since the last time."""
        with self._lock:
            while found := self._stored.records_of((CAUSE_KIND, RESULT_KIND), after=self._seq):
                for record in found:
                    self._add(record)
                self._seq = found[-1].seq

    def _add(self, record: Record) -> None:
        if record.kind == CAUSE_KIND:
            change = cause_record_of(record)
            self._records.setdefault(change.signature, []).append(change)
            return
        override = self._stored.override(record.body["override_id"])
        by = f"override {override.override_id} ({override.who})"
        for signature, left in resolutions_of(record.body, override.confirmed):
            resolution = Resolution(record.seq, record.at, by, left, override.override_id)
            self._resolutions.setdefault(signature, []).append(resolution)

    def life(self, cause: Cause, first_seen: datetime | None = None, at: datetime | None = None) -> CauseLife:
        """The state of a counted cause now, or as it was at a time if the cause was counted then.

        `first_seen` comes from the history, if there is one. Call `read` before to have what others recorded.
        """
        if cause.signature is None:
            return UNKNOWN_LIFE
        return self.life_of(cause.signature, Sighting.of(cause, first_seen), at)

    def life_of(self, signature: str, sighting: Sighting, at: datetime | None = None) -> CauseLife:
        """The same for a cause of which only this is known."""
        records: Sequence[CauseRecord] = self._records.get(signature, ())
        resolutions: Sequence[Resolution] = self._resolutions.get(signature, ())
        if at is not None:
            records = [record for record in records if record.at <= at]
            resolutions = [one for one in resolutions if one.at <= at]
        return life_of(sighting, records, resolutions, at or self._clock.now())

    @property
    def named(self) -> frozenset[str]:
        """The signatures that the trail knows, whether or not they fail now."""
        return frozenset((*self._records, *self._resolutions))


class CauseStates(CauseLives):
    """The states of all causes, which a person changes by recording it. Nothing here writes to a watched system."""

    def __init__(
        self, trail: Trail, clock: Clock, who: Who, origin: Origin, *, read_only: bool = False
    ) -> None:
        super().__init__(trail, clock)
        self._trail = trail
        self._who, self._origin = who, origin
        self.read_only = read_only

    def acknowledge(self, cause: Cause, note: str = "") -> None:
        """Record that somebody knows about this cause. It is listed last until it is resolved or reopened."""
        self._change(cause, CauseChange.ACKNOWLEDGED, note)

    def snooze(self, cause: Cause, snooze: Snooze, note: str = "") -> None:
        """List this cause last for a while."""
        if snooze.until is not None and snooze.until <= self._clock.now():
            raise UsageFault(f"{instant(snooze.until)} has already passed", fix="Name a time in the future.")
        if not any(snooze):
            raise UsageFault("Nothing would end the snooze", fix="Name a time, or what should end it.")
        self._change(cause, CauseChange.SNOOZED, note, snooze)

    def resolve(self, cause: Cause, note: str = "") -> None:
        """Record that it is over. If it fails again, it is shown as regressed."""
        self._change(cause, CauseChange.RESOLVED, note)

    def reopen(self, cause: Cause, note: str = "") -> None:
        """Record that this cause is no longer acknowledged, snoozed or resolved."""
        self._change(cause, CauseChange.REOPENED, note)

    def assign(self, cause: Cause, owner: str) -> None:
        """Name its owner; an empty name for nobody."""
        owner = owner.strip()
        if owner and is_blank(owner):
            raise UsageFault("The owner's name is invisible", fix="Write a name, or an empty one for nobody.")
        self._change(cause, CauseChange.ASSIGNED, owner)

    def note(self, cause: Cause, text: str) -> None:
        """Add a note."""
        if is_blank(text):
            raise UsageFault("The note is empty", fix="Write what others should know about this cause.")
        self._change(cause, CauseChange.NOTED, text)

    def _change(self, cause: Cause, change: CauseChange, text: str, snooze: Snooze | None = None) -> None:
        if self.read_only:
            raise ReadOnlyRefused("the state of a cause cannot be changed")
        if cause.signature is None:
            raise Refused("Failures without error text have no cause")
        if len(text) > LONGEST_TEXT:
            raise UsageFault(f"The text has {len(text)} characters", fix=f"Use at most {LONGEST_TEXT}.")
        now, names = self._clock.now(), frozenset(name for name, _ in cause.backends)
        record = CauseRecord(0, now, cause.signature, change, "", text, snooze, cause.count, names)
        self._trail.change_cause({**body_of(record), **recorded(self._who, self._origin)}, now)
        self.read()
