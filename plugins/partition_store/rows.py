"""Partition rows with their row in the control table → facts → items.

| native status | condition |
|---|---|
| no row, within the configured range | waiting: implicitly pending |
| pending, attempt_count 0 or NULL | waiting |
| pending, attempt_count > 0 | retrying: requeued, not picked up yet |
| failed, marked terminal here | terminal |
| failed, `[terminal]` in the error | terminal, unless that was overruled here for this very failure |
| failed, attempt_count >= max_attempts | terminal |
| failed, logical_date as old as max_age | terminal |
| failed, error not recoverable by the policy | terminal |
| failed otherwise | failed: not retried automatically |
| success | done, also while a reprocessing is requested |
| anything else | unknown, shown as it is |

A paused partition keeps its condition. Whether the validator takes it is predicted by `prediction.predict`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, assert_never

from console.core.item import Item, ItemKey, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, judge
from console.core.prediction import Prediction
from console.core.text import neutralise
from console.sql.database import Row
from console.sql.times import Aware, IsoText
from console.sql.values import as_bytes, storable, text, whole_number
from plugins.partition_store.prediction import PartitionState, predict
from plugins.partition_store.sink import Partition

PHASES = {"failed": Phase.FAILED, "pending": Phase.READY, "success": Phase.DONE}
TEXT_MARKER = "[terminal]"
NO_SUCH_RUN = "current_run_id names a run that does not exist"
MARKED, OVERRULED = "marked", "overruled"
DIGEST_LENGTH = 12
_ONLY_HERE = "only in this console: its validator does not read that"

SIGNED = ("terminal", "paused", "request")
SIGNS = tuple(f"{mark}_{what}" for mark in SIGNED for what in ("by", "at", "why"))


def digest_of(error: bytes) -> str:
    """Tells the text of one failure from that of another."""
    return hashlib.md5(error, usedforsecurity=False).hexdigest()[:DIGEST_LENGTH]


def overruled(attempts: int, digest: str) -> str:
    """The stored mark that overrules `[terminal]` in the text of one failure. A later failure is not overruled."""
    return f"{OVERRULED} {attempts} {digest}"


def terminal_mark(mark: str | None, attempts: int, digest: str | None) -> str | None:
    """The mark as an image keeps it: the stored one, and after `|` the digest of an error that is not overruled."""
    if digest is None or mark == overruled(attempts, digest):
        return mark
    return f"{mark or ''}|{digest}"


def stored_mark(mark: str | None) -> str | None:
    """The part of an image's mark that is in the control table."""
    return (mark or "").partition("|")[0] or None


class PartitionImage(NamedTuple):
    """What a plan keeps of a partition: what guards a write, and what the actions set."""

    status: Any = None
    attempt_count: Any = None
    updated_at: Any = None
    current_run_id: Any = None
    terminal: Any = None
    paused: Any = None
    next_run_at: Any = None
    request: Any = None
    signs: list[Any] | None = None
    """Who set the marks, when and why (the columns of SIGNS). Never compared; an undo writes it back."""

    @property
    def state(self) -> tuple[Any, ...]:
        """The part in the state table; only NULLs if it has no row."""
        return self[:4]

    @property
    def marks(self) -> tuple[Any, ...]:
        """The part in the control table."""
        return self[4:8]

    @property
    def compared(self) -> tuple[Any, ...]:
        return self[:8]

    @property
    def marked_terminal(self) -> bool:
        """Whether it is marked here or by its error, and that is not overruled."""
        return stored_mark(self.terminal) == MARKED or "|" in (self.terminal or "")

    def cleared(self, *, ours: bool) -> str | None:
        """The terminal mark once it is cleared. A text of somebody else's system is not overruled."""
        _, bar, digest = (self.terminal or "").partition("|")
        if not ours:
            return f"|{digest}" if bar else None
        return overruled(whole_number(self.attempt_count), digest) if bar else None


STATE_COLUMNS = PartitionImage._fields[:4]
MARKS = PartitionImage._fields[4:8]


def stored(value: Any) -> Any:
    """A stored value as an image keeps it: times as text in UTC, whatever the session's time zone is."""
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.isoformat() if isinstance(value, date) else value


class Native(NamedTuple):
    """One row as it is read: the state, the control table's columns, and whether the state table has a row."""

    source: Any
    customer_id: Any
    query_name: Any
    logical_date: Any
    status: Any
    attempt_count: Any
    error: Any
    updated_at: Any
    current_run_id: Any
    terminal: Any
    terminal_by: Any
    terminal_at: Any
    terminal_why: Any
    paused: Any
    paused_by: Any
    paused_at: Any
    paused_why: Any
    next_run_at: Any
    request: Any
    request_by: Any
    request_at: Any
    request_why: Any
    request_error: Any
    explicit: Any

    @property
    def partition(self) -> Partition:
        return Partition(*(text(part) for part in self[:4]))

    @property
    def text_digest(self) -> str | None:
        """The digest of an error that marks the partition as terminal. The marker is case-sensitive."""
        marked = isinstance(self.error, str) and TEXT_MARKER in self.error
        return digest_of(as_bytes(self.error)) if marked else None

    @property
    def image(self) -> PartitionImage | None:
        """None if it holds a value that a plan cannot keep."""
        signs = [stored(getattr(self, name)) for name in SIGNS]
        image = PartitionImage(
            status=self.status,
            attempt_count=self.attempt_count,
            updated_at=stored(self.updated_at),
            current_run_id=self.current_run_id,
            terminal=terminal_mark(self.terminal, whole_number(self.attempt_count), self.text_digest),
            paused=self.paused,
            next_run_at=stored(self.next_run_at),
            request=self.request,
            signs=signs if any(signs) else None,
        )
        return image if storable((*image.compared, *signs)) else None


class PartitionRows:
    """Makes items from rows of `partition_state` and the control table."""

    def __init__(
        self, backend: str, policy: RetryPolicy, time: IsoText | Aware, *, ours: bool,
        lacks_run: Callable[[Partition, str], bool],
    ) -> None:
        self._backend = backend
        self._ours = ours
        self._lacks_run = lacks_run
        self._policy = policy
        self._decode = time.decode

    def facts(self, row: Native) -> Facts:
        phase = PHASES.get(row.status, Phase.UNKNOWN) if row.explicit else Phase.READY
        return Facts(
            phase,
            text(row.status),
            whole_number(row.attempt_count),
            error=text(row.error) or None,
            due_at=self._decode(row.next_run_at) if phase is Phase.READY and self._ours else None,
            born_at=_midnight(row.logical_date),
            marker=self._marker(row),
        )

    def _marker(self, row: Native) -> str | None:
        mark = terminal_mark(row.terminal, whole_number(row.attempt_count), row.text_digest)
        if stored_mark(mark) == MARKED:
            return f"marked terminal by {_signed(row.terminal_by, row.terminal_why)}{self._scope}"
        return f"marked terminal: its error says {TEXT_MARKER}" if "|" in (mark or "") else None

    @property
    def _scope(self) -> str:
        return "" if self._ours else f" ({_ONLY_HERE})"

    def predict(self, row: Native) -> Prediction:
        """Whether the validator takes a partition."""
        paused = _signed(row.paused_by, row.paused_why) if row.paused else None
        state = PartitionState(
            bool(row.explicit), text(row.status), paused, self._decode(row.next_run_at), row.request == "reprocess"
        )
        return predict(state, ours=self._ours)

    def verdict(self, row: Native, facts: Facts, now: datetime) -> Verdict:
        verdict, prediction = judge(facts, self._policy, now), self.predict(row)
        match facts.phase:
            case Phase.READY:
                return verdict if prediction.runs else prediction.apply(verdict)
            case Phase.DONE if prediction.runs:
                return verdict._replace(why="finished, to be reprocessed", will_run_again=True)
            case Phase.DONE | Phase.RUNNING | Phase.FAILED | Phase.CANCELLED | Phase.UNKNOWN:
                return verdict
            case _:
                assert_never(facts.phase)

    def read(self, row: Row, now: datetime) -> Item:
        native = Native(*row)
        facts = self.facts(native)
        updated = self._decode(native.updated_at)
        verdict, notes = self.verdict(native, facts, now), self._notes(native, updated)
        if any(note.startswith(NO_SUCH_RUN) for note in notes):  # lists show why, and not the notes
            verdict = verdict._replace(why=f"{verdict.why}; {NO_SUCH_RUN}")
        return Item(
            ItemKey(self._backend, native.partition),
            text(native.query_name),
            facts.native_status,
            facts.attempts,
            self._policy.max_attempts,
            verdict,
            facts.error,
            facts.born_at,
            updated,
            now,
            updated if facts.attempts else None,
            tuple(notes),
        )

    def _notes(self, row: Native, updated: datetime | None) -> list[str]:
        notes = []
        if why := row.partition.invalid:
            notes.append(f"invalid: {why}; its raw data is not read")
        if not row.explicit:
            notes.append("no row yet; it is within the configured range")
        if row.updated_at is not None and updated is None:
            notes.append(f"updated_at is not a time: {text(row.updated_at)[:60]!r}")
        if row.attempt_count is not None and (type(row.attempt_count) is not int or row.attempt_count < 0):
            notes.append(f"attempt_count is {row.attempt_count!r}, read as {whole_number(row.attempt_count)}"[:120])
        if row.paused and not (self._ours and PHASES.get(row.status) is Phase.READY):
            notes.append(f"paused{self._scope}")
        if row.current_run_id is not None and self._lacks_run(row.partition, text(row.current_run_id)):
            notes.append(f"{NO_SUCH_RUN}: {neutralise(text(row.current_run_id), 60)}")
        if row.request == "reprocess":
            notes.append("reprocess requested, not picked up yet")
        if row.request_error:
            notes.append(f"its last reprocess failed: {neutralise(text(row.request_error), 120)}")
        return notes


def _midnight(day: Any) -> datetime | None:
    """When a day begins in UTC; None for what is no day. SQLite stores days as text, perhaps with a time."""
    if isinstance(day, date):
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    return _DAYS.decode(day)


_DAYS = IsoText()


def _signed(who: Any, why: Any) -> str:
    return f"{neutralise(text(who), 40)}: {neutralise(text(why), 100)}"
