"""The working tables held against the records: what is shown of overrides and intents is what was recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.core.override import NOT_APPLIED, OverrideState
from console.core.plan import canonical
from console.trail.record import CONCLUDING, BadRecord, Kind, a_number
from console.trail.storage import Row, Storage, select
from console.trail.texts import stored_text

_AT_ONCE = 5_000
_INTENTS = "SELECT seq, op_id, owner, concluded FROM intent WHERE seq > ? AND seq <= ?"
_CONFIRMED = "SELECT op_id, seq, plan_id, started, confirmed FROM override_state WHERE op_id IN ({})"
_BECAME = """SELECT o.op_id, o.state, o.note, o.counts,
    (SELECT max(i.concluded) FROM intent AS i WHERE i.op_id = o.op_id), (SELECT max(seq) FROM record)
    FROM override_state AS o WHERE o.op_id IN ({})"""
_CONCLUSIONS = "SELECT seq, kind, body FROM record WHERE seq IN ({})"
_UNTOLD = (
    ("intent", "SELECT min(seq) FROM intent WHERE seq < 1 OR seq > (SELECT coalesce(max(seq), 0) FROM record)"),
    ("override_state", """SELECT min(o.seq) FROM override_state AS o
        LEFT JOIN record AS r ON r.seq = o.seq AND r.kind = 'confirm' WHERE r.seq IS NULL"""),
    ("override_state", """SELECT min(seq) FROM
        (SELECT seq FROM override_state GROUP BY seq HAVING count(*) > 1) AS twice"""),
)


@dataclass
class _Course:
    """What the records tell of an override so far."""

    owner: str
    told: int
    """The record that tells its state."""
    concluded: int | None = None
    """The last record that tells of its items."""
    state: str = OverrideState.RUNNING.value
    note: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def tell(self, seq: int, counts: Counter[str], instead: Counter[str] | None = None) -> None:
        """A record of its items; `instead` is what was told of them before."""
        self.concluded = seq
        self.counts = self.counts + counts - (instead or Counter())
        del self.counts[NOT_APPLIED]


class Working:
    """In step with the records, page by page; an override is forgotten when it is finished and all was told of it.

    The tables are read after the end was, and go on changing: what is told beyond the end is not judged.
    """

    def __init__(self, storage: Storage, end: int) -> None:
        self._storage = storage
        self._end = end
        self._courses: dict[str, _Course] = {}
        self._concluded: dict[int, Any] = {}
        """By intent the record that concluded it, as the table says; until that record is met."""

    def page(self, records: Sequence[Row]) -> None:
        """Records that follow those of the page before, with their hashes verified."""
        told = [(seq, kind, at, text, _body(seq, text)) for seq, kind, at, text, _, _ in records if kind in _TELLING]
        self._confirmations([row for row in told if row[1] == Kind.CONFIRM])
        intents = {row[0]: row[1:] for row in select(self._storage, _INTENTS, (records[0][0] - 1, records[-1][0]))}
        for seq, kind, _, _, body in told:
            try:
                self._follow(seq, kind, body, intents)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise BadRecord(seq, "cannot be read") from None
        if intents:
            raise _untold("intent", min(intents))
        finished = [op_id for op_id, course in self._courses.items() if course.state == OverrideState.FINISHED]
        for op_id in self._became(finished):
            del self._courses[op_id]

    def end(self) -> None:
        """No record is left."""
        self._became(list(self._courses))
        self._concluded_beyond()
        for table, sql in _UNTOLD:
            for (seq,) in select(self._storage, sql):
                if seq is not None:
                    raise _untold(table, a_number(seq))

    def _confirmations(self, told: Sequence[Row]) -> None:
        stored = {row[0]: row for row in self._among(_CONFIRMED, [body["op_id"] for *_, body in told])}
        for seq, _, at, text, body in told:
            if (found := stored.get(body["op_id"])) is None:
                raise BadRecord(seq, "the table override_state has lost it")
            if found != (body["op_id"], seq, body.get("plan_id"), at, text):
                raise _otherwise(seq, "override_state")

    def _follow(self, seq: int, kind: str, body: dict[str, Any], intents: dict[int, Row]) -> None:
        op_id = body["op_id"]
        if kind == Kind.CONFIRM:
            self._courses[op_id] = _Course(body["owner"], seq)
            return
        course = self._courses.get(op_id)
        if course is None:
            raise BadRecord(seq, "tells of an override that is over, or was never confirmed")
        if kind == Kind.TAKEOVER:
            course.owner, course.told = body["owner"], seq
            course.state, course.note = OverrideState.RUNNING.value, ""
        elif kind == Kind.STATE:
            course.told, course.state, course.note = seq, body["state"], stored_text(body["note"])
        elif kind == Kind.INTENT:
            self._announced(seq, course, op_id, intents.pop(seq, None))
        elif kind == Kind.LATE:
            if intents.pop(seq, None) != (op_id, body["owner"], seq):
                raise _otherwise(seq, "intent")
            course.tell(seq, Counter(body["counts"]), Counter(body["instead"]))
        else:
            if self._concluded.pop(body["intent"], None) != seq:
                raise _otherwise(seq, "intent")
            course.tell(seq, Counter(body["counts"]))

    def _announced(self, seq: int, course: _Course, op_id: str, row: Row | None) -> None:
        if row is None:
            raise BadRecord(seq, "the table intent has lost it")
        if row[:2] != (op_id, course.owner):
            raise _otherwise(seq, "intent")
        if row[2] is not None:
            self._concluded[seq] = row[2]

    def _became(self, op_ids: Sequence[str]) -> list[str]:
        """Those of them that no later record tells of."""
        told = []
        for op_id, state, note, counts, concluded, last in self._among(_BECAME, op_ids):
            course = self._courses[op_id]
            still = course.state == OverrideState.FINISHED or last == self._end
            if still and (state, note) != (course.state, course.note):
                raise _otherwise(course.told, "override_state")
            if concluded != course.concluded:
                continue
            if counts != canonical(course.counts):
                raise _otherwise(course.concluded or course.told, "override_state")
            told.append(op_id)
        return told

    def _concluded_beyond(self) -> None:
        """What the table calls concluded, though no record did up to the end, was concluded since."""
        beyond = {seq: intent for intent, seq in self._concluded.items()}
        for seq, kind, text in self._among(_CONCLUSIONS, [seq for seq in beyond if isinstance(seq, int)]):
            if seq > self._end and kind in CONCLUDING and _body(seq, text).get("intent") == beyond[seq]:
                del self._concluded[beyond[seq]]
        if self._concluded:
            raise _otherwise(min(self._concluded), "intent")

    def _among(self, sql: str, values: Sequence[Any]) -> Iterator[Row]:
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            yield from select(self._storage, sql.format(", ".join("?" * len(some))), some)


_TELLING = frozenset({Kind.CONFIRM, Kind.TAKEOVER, Kind.STATE, Kind.INTENT, *CONCLUDING})


def _body(seq: int, text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise BadRecord(seq, "cannot be read") from None
    if not isinstance(body, dict) or not isinstance(body.get("op_id"), str):
        raise BadRecord(seq, "cannot be read")
    return body


def _otherwise(seq: int, table: str) -> BadRecord:
    return BadRecord(seq, f"the table {table} says something else")


def _untold(table: str, seq: int) -> BadRecord:
    return BadRecord(max(seq, 1), f"the table {table} has a row that no record tells of")
