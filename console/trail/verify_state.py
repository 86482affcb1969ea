"""Checks the state tables against the records: they must show what was recorded, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from console.core.override import NOT_APPLIED, OverrideState, Request
from console.core.plan import canonical
from console.trail.leases import is_heartbeat
from console.trail.record import CONCLUDING, BadRecord, Kind, a_number
from console.trail.storage import Row, Storage, select, stored_text

_AT_ONCE = 5_000
_INTENTS = "SELECT seq, override_id, owner, concluded FROM intent WHERE seq > ? AND seq <= ?"
_CONFIRMED = """SELECT override_id, seq, plan_id, started, confirmed, leases, undo_of FROM override_state
    WHERE override_id IN ({})"""
_STATES = """SELECT o.override_id, o.state, o.note, o.request, o.counts,
    (SELECT max(i.concluded) FROM intent AS i WHERE i.override_id = o.override_id), (SELECT max(seq) FROM record)
    FROM override_state AS o WHERE o.override_id IN ({})"""
_RESULTS = "SELECT override_id, result FROM override_state WHERE override_id IN ({})"
_LEASES = "SELECT place, backend, override_id, owner, heartbeat FROM lease"
_CONCLUSIONS = "SELECT seq, kind, body FROM record WHERE seq IN ({})"
_ROWS_WITHOUT_RECORD = (
    ("intent", "SELECT min(seq) FROM intent WHERE seq < 1 OR seq > (SELECT coalesce(max(seq), 0) FROM record)"),
    ("override_state", """SELECT min(o.seq) FROM override_state AS o
        LEFT JOIN record AS r ON r.seq = o.seq AND r.kind = 'confirmed' WHERE r.seq IS NULL"""),
    ("override_state", """SELECT min(o.result) FROM override_state AS o
        LEFT JOIN record AS r ON r.seq = o.result AND r.kind = 'result'
        WHERE o.result IS NOT NULL AND r.seq IS NULL"""),
    ("override_state", """SELECT min(seq) FROM
        (SELECT seq FROM override_state GROUP BY seq HAVING count(*) > 1) AS twice"""),
)


@dataclass
class _Expected:
    """The state of one override, as the records so far imply it."""

    owner: str
    state_seq: int
    """The record that set its state."""
    concluded_seq: int | None = None
    """The last record with outcomes of its items."""
    state: str = OverrideState.RUNNING.value
    note: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    """The places that it leases while it runs, with their backends."""
    request: tuple[int, str] | None = None
    """The record of the last request, and what it asks."""

    @property
    def runs(self) -> bool:
        return self.state in (OverrideState.RUNNING, OverrideState.PAUSED)

    @property
    def requests(self) -> tuple[int | None, ...]:
        """What the table may show as pending: the process that runs it forgets a continue when it has seen it."""
        if self.request is None:
            return (None,)
        seq, asked = self.request
        return (seq, None) if asked == Request.CONTINUE else (seq,)

    def set_state(self, seq: int, state: str, note: str) -> None:
        self.state_seq, self.state, self.note = seq, state, note
        if not self.runs:
            self.request = None

    def add_outcomes(self, seq: int, counts: Counter[str], replaced: Counter[str] | None = None) -> None:
        """Add a record's outcomes. `replaced` are earlier outcomes of the same items that no longer count."""
        self.concluded_seq = seq
        self.counts = self.counts + counts - (replaced or Counter())
        del self.counts[NOT_APPLIED]


class StateCheck:
    """Follows the records page by page and compares the state tables with them.

    Memory stays small: a finished override is dropped as soon as its row was compared. Records may be added while the
    check runs; what the tables show of records after `end` is not judged.
    """

    def __init__(self, storage: Storage, end: int) -> None:
        self._storage = storage
        self._end = end
        self._overrides: dict[str, _Expected] = {}
        self._concluded: dict[int, Any] = {}
        """Intent → the record that concluded it according to the table, until that record is reached."""
        self._results: dict[str, int] = {}
        """Override → its result record, as long as the table does not show it. A resumed one may have another."""

    def check_page(self, records: Sequence[Row]) -> None:
        """Compare the next records; their hashes are verified already."""
        relevant = [
            (seq, Kind(kind), at, text, _body(seq, text))
            for seq, kind, at, text, _, _ in records
            if kind in _STATE_KINDS
        ]
        self._check_confirmations([row for row in relevant if row[1] is Kind.CONFIRMED])
        intents = {row[0]: row[1:] for row in select(self._storage, _INTENTS, (records[0][0] - 1, records[-1][0]))}
        for seq, kind, _, _, body in relevant:
            if kind is Kind.RESULT:
                self._results[body["override_id"]] = seq
                continue
            try:
                self._follow(seq, kind, body, intents)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise BadRecord(seq, "cannot be read") from None
        if intents:
            raise _without_record("intent", min(intents))
        finished = [name for name, known in self._overrides.items() if known.state == OverrideState.FINISHED]
        for override_id in self._check_states(finished):
            del self._overrides[override_id]
        for override_id, result in self._among(_RESULTS, list(self._results)):
            if result == self._results[override_id]:
                del self._results[override_id]

    def check_end(self) -> None:
        """Compare what is left after the last record."""
        self._check_states(list(self._overrides))
        self._check_later_conclusions()
        self._check_results()
        self._check_leases()
        for table, sql in _ROWS_WITHOUT_RECORD:
            for (seq,) in select(self._storage, sql):
                if seq is not None:
                    raise _without_record(table, a_number(seq))

    def _check_results(self) -> None:
        """The table shows the last result of each override, unless it was resumed since."""
        if select(self._storage, "SELECT max(seq) FROM record") != [(self._end or None,)]:
            return  # it may have been resumed meanwhile
        for seq in sorted(self._results.values()):
            raise _differs(seq, "override_state")

    def _check_confirmations(self, confirmations: Sequence[Row]) -> None:
        stored = {row[0]: row for row in self._among(_CONFIRMED, [body["override_id"] for *_, body in confirmations])}
        for seq, _, at, text, body in confirmations:
            if (found := stored.get(body["override_id"])) is None:
                raise BadRecord(seq, "its row in table override_state is missing")
            leased = len({part["place"] for part in body["parts"]})
            if found != (body["override_id"], seq, body.get("plan_id"), at, text, leased, body.get("undo_of")):
                raise _differs(seq, "override_state")

    def _follow(self, seq: int, kind: Kind, body: dict[str, Any], intents: dict[int, Row]) -> None:
        override_id = body["override_id"]
        if kind is Kind.CONFIRMED:
            places = {stored_text(part["place"]): part["backend"] for part in body["parts"]}
            state = OverrideState.QUEUED if body.get("detached") else OverrideState.RUNNING
            self._overrides[override_id] = _Expected(body["owner"], seq, state=state.value, places=places)
            return
        known = self._overrides.get(override_id)
        if known is None:
            raise BadRecord(seq, "belongs to an override that is finished or was never confirmed")
        match kind:
            case Kind.TAKEOVER:
                self._results.pop(override_id, None)
                known.owner, known.state_seq = body["owner"], seq
                known.state, known.note, known.request = OverrideState.RUNNING.value, "", None
            case Kind.STATE:
                known.set_state(seq, body["state"], stored_text(body["note"]))
            case Kind.REQUESTED:
                if known.request is None or known.request[1] != Request.STOP:
                    known.request = seq, body["request"]
            case Kind.INTENT:
                self._check_intent(seq, known, override_id, intents.pop(seq, None))
            case Kind.LATE:
                if intents.pop(seq, None) != (override_id, body["owner"], seq):
                    raise _differs(seq, "intent")
                known.add_outcomes(seq, Counter(body["counts"]), Counter(body["replaced"]))
            case Kind.OUTCOME | Kind.SETTLE:
                if self._concluded.pop(body["intent"], None) != seq:
                    raise _differs(seq, "intent")
                known.add_outcomes(seq, Counter(body["counts"]))
            case (
                Kind.REFUSAL | Kind.ANCHOR | Kind.RESULT | Kind.PLANNED | Kind.PLAN_DROPPED | Kind.CAUSE
                | Kind.SUBMITTED | Kind.REJECTED | Kind.WITHDRAWN | Kind.POLICY
            ):
                raise ValueError(kind)  # these say nothing about the state of an override
            case _:
                assert_never(kind)

    def _check_intent(self, seq: int, known: _Expected, override_id: str, row: Row | None) -> None:
        if row is None:
            raise BadRecord(seq, "its row in table intent is missing")
        if row[:2] != (override_id, known.owner):
            raise _differs(seq, "intent")
        if row[2] is not None:
            self._concluded[seq] = row[2]

    def _check_states(self, override_ids: Sequence[str]) -> list[str]:
        """Compare the rows of these overrides; returns those that no later record has changed."""
        complete = []
        for override_id, state, note, request, counts, concluded, last in self._among(_STATES, override_ids):
            known = self._overrides[override_id]
            final = known.state == OverrideState.FINISHED or last == self._end
            if final and (state, note) != (known.state, known.note):
                raise _differs(known.state_seq, "override_state")
            if final and request not in known.requests:
                raise _differs(known.request[0] if known.request else known.state_seq, "override_state")
            if concluded != known.concluded_seq:
                continue
            if counts != canonical(known.counts):
                raise _differs(known.concluded_seq or known.state_seq, "override_state")
            complete.append(override_id)
        return complete

    def _check_leases(self) -> None:
        """Every running override has its leases, and nobody else has one. The time of a heartbeat is not judged."""
        held = {}
        for place, *lease, heartbeat in select(self._storage, _LEASES):
            held[place] = tuple(lease)
            if not is_heartbeat(heartbeat):
                raise BadRecord(max(self._end, 1), f"table lease has no time as the heartbeat of {place}")
        if select(self._storage, "SELECT max(seq) FROM record") != [(self._end or None,)]:
            return  # an override began or ended meanwhile
        for override_id, known in self._overrides.items():
            if known.runs:
                for place, backend in known.places.items():
                    if held.pop(place, None) != (backend, override_id, known.owner):
                        raise _differs(known.state_seq, "lease")
        for place in held:
            raise BadRecord(max(self._end, 1), f"table lease has a row without a running override: {place}")

    def _check_later_conclusions(self) -> None:
        """An intent that is concluded in the table needs a record that concludes it. It may follow `end`."""
        later = {seq: intent for intent, seq in self._concluded.items()}
        for seq, kind, text in self._among(_CONCLUSIONS, [seq for seq in later if isinstance(seq, int)]):
            if seq > self._end and kind in CONCLUDING and _body(seq, text).get("intent") == later[seq]:
                del self._concluded[later[seq]]
        if self._concluded:
            raise _differs(min(self._concluded), "intent")

    def _among(self, sql: str, values: Sequence[Any]) -> Iterator[Row]:
        for start in range(0, len(values), _AT_ONCE):
            some = values[start : start + _AT_ONCE]
            yield from select(self._storage, sql.format(", ".join("?" * len(some))), some)


_STATE_KINDS = frozenset(
    {Kind.CONFIRMED, Kind.TAKEOVER, Kind.STATE, Kind.REQUESTED, Kind.INTENT, Kind.RESULT, *CONCLUDING}
)


def _body(seq: int, text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError:
        raise BadRecord(seq, "cannot be read") from None
    if not isinstance(body, dict) or not isinstance(body.get("override_id"), str):
        raise BadRecord(seq, "cannot be read")
    return body


def _differs(seq: int, table: str) -> BadRecord:
    return BadRecord(seq, f"table {table} does not match it")


def _without_record(table: str, seq: int) -> BadRecord:
    return BadRecord(max(seq, 1), f"table {table} has a row without a record")
