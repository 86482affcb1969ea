"""Reads overrides, intents, outcomes and records. All of it works on a read-only trail too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from console.core.faults import NoSuchOverride, TrailBroken
from console.core.override import UNWANTED_STOPS, Intent, ItemOutcome, Override, OverrideState, outcome_label
from console.core.ports import Record
from console.core.recovery import ItemResult, Result, ResultCounts
from console.trail.leases import Lease, leases
from console.trail.plans import BATCH, Plans, only
from console.trail.record import VERIFY, Kind, legible, link, moment, parsed
from console.trail.storage import Reading, Row, original, select, stored_text

_OVERRIDE = """SELECT o.override_id, o.plan_id, o.state, o.started, o.confirmed, o.counts, o.note, r.body
    FROM override_state AS o LEFT JOIN record AS r ON r.seq = o.result"""
_BY_PREFIX = f"""{_OVERRIDE} WHERE substr(o.override_id, 1, ?) = ?
    ORDER BY length(o.override_id), o.override_id LIMIT 2"""
_NEWEST = f"{_OVERRIDE} ORDER BY o.seq DESC LIMIT ?"
_UNATTENDED = f"""{_OVERRIDE} WHERE o.state IN (?, ?)
    OR (o.state = ? AND ({" OR ".join(["substr(o.note, 1, ?) = ?"] * len(UNWANTED_STOPS))})) ORDER BY o.seq"""
_UNDOS = "SELECT undo_of, override_id FROM override_state WHERE undo_of IS NOT NULL ORDER BY seq"
_UNDOS_OF = "SELECT undo_of, override_id FROM override_state WHERE undo_of = ? ORDER BY seq"
_RESULT = "SELECT result FROM override_state WHERE override_id = ?"
_RESULTS = """SELECT ordinal, key, result, cause FROM item_result
    WHERE seq = ? AND ordinal > ? ORDER BY ordinal LIMIT ?"""
_CONFIRMATION = """SELECT r.seq, r.kind, r.at, r.body, r.prev, r.hash FROM override_state AS o
    JOIN record AS r ON r.seq = o.seq WHERE o.override_id = ?"""
_INTENTS = """SELECT r.seq, r.body, i.concluded FROM intent AS i JOIN record AS r ON r.seq = i.seq
    WHERE i.override_id = ? ORDER BY r.seq"""
_OPEN_INTENTS = """SELECT r.seq, r.body, i.concluded FROM intent AS i JOIN record AS r ON r.seq = i.seq
    WHERE i.override_id = ? AND i.concluded IS NULL ORDER BY r.seq"""
_ALL_OPEN_INTENTS = """SELECT r.seq, r.body, i.concluded FROM intent AS i JOIN record AS r ON r.seq = i.seq
    WHERE i.concluded IS NULL ORDER BY r.seq"""
_CONCLUSIONS = "SELECT concluded FROM intent WHERE override_id = ? AND concluded IS NOT NULL ORDER BY concluded"
_ITEMS = """SELECT ordinal, key, outcome, detail FROM item_outcome
    WHERE seq = ? AND ordinal > ? ORDER BY ordinal LIMIT ?"""
_OF_ITEM = """SELECT r.at, o.confirmed, x.outcome, x.detail FROM item_outcome AS x
    JOIN record AS r ON r.seq = x.seq JOIN intent AS i ON i.concluded = x.seq
    JOIN override_state AS o ON o.override_id = i.override_id WHERE x.key = ? ORDER BY x.seq"""
_RECORDS = "SELECT seq, kind, at, body, prev, hash FROM record WHERE seq > ? ORDER BY seq LIMIT ?"
_RECORDS_BEFORE = "SELECT seq, kind, at, body, prev, hash FROM record WHERE seq < ? ORDER BY seq DESC LIMIT ?"

_RECORDS_OF = """SELECT seq, kind, at, body, prev, hash FROM record
    WHERE kind IN ({}) AND seq > ? ORDER BY seq LIMIT ?"""

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class TrailReader(Plans):
    """The part of the trail that reads."""

    def override(self, override_id: str) -> Override:
        prefix = stored_text(override_id)

        def work(reading: Reading) -> tuple[list[Row], list[Row], list[Lease], datetime]:
            rows = reading.all(_BY_PREFIX, (len(prefix), prefix))
            undos = [undo for row in rows for undo in reading.all(_UNDOS_OF, (row[0],))]
            return rows, undos, leases(reading), reading.now(ours)

        ours = self._clock.now()
        nothing: tuple[list[Row], list[Row], list[Lease], datetime] = ([], [], [], ours)
        rows, undos, held, now = self._storage.read(work, nothing)
        found = only(rows, override_id)
        if found is None:
            several = len(rows) > 1 and override_id
            raise NoSuchOverride(f"several begin with {override_id!r}" if several else repr(override_id))
        return _override(found, undos, held, now)

    def overrides(self, limit: int | None = None) -> Sequence[Override]:
        def work(reading: Reading) -> list[Override]:
            newest = reading.all(_NEWEST, (_HIGHEST if limit is None else limit,))
            undos = reading.all(_UNDOS)
            held, now = leases(reading), reading.now(self._clock.now())
            return [_override(row, undos, held, now) for row in newest]

        nothing: list[Override] = []
        return self._storage.read(work, nothing)

    def unattended(self) -> Sequence[Override]:
        states = [state.value for state in (OverrideState.QUEUED, OverrideState.RUNNING, OverrideState.STOPPED)]
        notes = [value for note in UNWANTED_STOPS for value in (len(note), note)]

        def work(reading: Reading) -> list[Override]:
            rows = reading.all(_UNATTENDED, (*states, *notes))
            held, now = leases(reading), reading.now(self._clock.now())
            return [override for row in rows if not (override := _override(row, (), held, now)).alive]

        nothing: list[Override] = []
        return self._storage.read(work, nothing)

    def confirmed_hash(self, override_id: str) -> str:
        """Read from the confirmation record, because the state tables could have been edited."""
        for seq, kind, at, body, prev, digest in select(self._storage, _CONFIRMATION, (stored_text(override_id),)):
            with legible(f"record {seq}"):
                confirmed = json.loads(body)
                intact = link(prev, seq, kind, at, body) == digest
                if intact and (kind, confirmed["override_id"]) == (Kind.CONFIRMED, override_id):
                    return str(confirmed["plan_hash"])
        raise TrailBroken(f"the confirmation of {override_id} was altered", advice=VERIFY)

    def outcomes(self, override_id: str) -> Iterator[Sequence[ItemOutcome]]:
        for (seq,) in select(self._storage, _CONCLUSIONS, (override_id,)):
            yield from self.item_outcomes(seq)

    def item_outcomes(self, seq: int) -> Iterator[Sequence[ItemOutcome]]:
        last = _LOWEST
        while True:
            rows = select(self._storage, _ITEMS, (seq, last, BATCH))
            if rows:
                with legible(f"the items of record {seq}"):
                    sum(row[0] for row in rows)  # fails unless these are numbers
                yield [ItemOutcome(*row) for row in original(rows, 1, 2, 3)]
            if len(rows) < BATCH:
                return
            last = rows[-1][0]

    def item_results(self, override_id: str) -> Iterator[Sequence[ItemResult]]:
        for (seq,) in select(self._storage, _RESULT, (override_id,)):
            if seq is not None:
                known = frozenset(self.plan(self.override(override_id).plan_id).by_cause)
                for rows in self.result_rows(seq):
                    with legible(f"the items of record {seq}"):
                        yield [
                            ItemResult(ordinal, key, Result(result), cause or None, cause in known)
                            for ordinal, key, result, cause in rows
                        ]

    def result_rows(self, seq: int) -> Iterator[Sequence[Row]]:
        """The item results that belong to one record, as they are stored, streamed in batches."""
        last = _LOWEST
        while True:
            rows = select(self._storage, _RESULTS, (seq, last, BATCH))
            if rows:
                yield original(rows, 1, 2, 3)
            if len(rows) < BATCH:
                return
            last = rows[-1][0]

    def intents(self, override_id: str) -> Sequence[Intent]:
        return _intents(select(self._storage, _INTENTS, (override_id,)))

    def open_intents(self, override_id: str) -> Sequence[Intent]:
        return _intents(select(self._storage, _OPEN_INTENTS, (override_id,)))

    def unresolved(self) -> Sequence[Intent]:
        def work(reading: Reading) -> tuple[list[Row], set[str]]:
            held = leases(reading)  # read before the intents, so that every intent read below had its lease by then
            now = reading.now(self._clock.now())
            return reading.all(_ALL_OPEN_INTENTS), {lease.override_id for lease in held if lease.alive(now)}

        nothing: tuple[list[Row], set[str]] = ([], set())
        rows, running = self._storage.read(work, nothing)
        return [intent for intent in _intents(rows) if intent.override_id not in running]

    def history_of(self, key: str) -> Sequence[tuple[datetime, str]]:
        rows = select(self._storage, _OF_ITEM, (stored_text(key),))
        with legible(f"the history of {key}"):
            return [(moment(at), _in_words(json.loads(confirmed), outcome, detail))
                    for at, confirmed, outcome, detail in original(rows, 2, 3)]

    def record(self, seq: int) -> Record | None:
        """One record, if there is one of that number."""
        found = self.records(after=seq - 1, limit=1)
        return found[0] if found and found[0].seq == seq else None

    def records(self, *, after: int = 0, limit: int = BATCH) -> Sequence[Record]:
        """Records in order, from the one after `after`."""
        return [parsed(row) for row in select(self._storage, _RECORDS, (after, limit))]

    def records_of(self, kinds: Sequence[str], *, after: int = 0, limit: int = BATCH) -> Sequence[Record]:
        """Records of these kinds in order, from the one after `after`."""
        sql = _RECORDS_OF.format(", ".join("?" * len(kinds)))
        return [parsed(row) for row in select(self._storage, sql, (*kinds, after, limit))]

    def newest(self, *, before: int | None = None, limit: int = 100) -> Sequence[Record]:
        """Records newest first, from the one before `before`."""
        asked = (_HIGHEST if before is None else before, limit)
        return [parsed(row) for row in select(self._storage, _RECORDS_BEFORE, asked)]


def intent_of(seq: int, body: Mapping[str, Any]) -> Intent:
    """The intent in the body of its record."""
    ranges = tuple((int(first), int(last)) for first, last in body["ranges"])
    return Intent(seq, body["override_id"], body["plan_id"], body["backend"], ranges, moment(body["at"]))


def _intents(rows: Sequence[Row]) -> list[Intent]:
    return [_intent(*row) for row in rows]


def _intent(seq: int, body: str, concluded: int | None) -> Intent:
    with legible(f"record {seq}"):
        return intent_of(seq, json.loads(body))._replace(concluded=concluded)


def _override(row: Row, undos: Sequence[Row], held: Sequence[Lease], now: datetime) -> Override:
    override_id, plan_id, state, started, confirmed, counts, note, result = row
    own = [lease for lease in held if lease.override_id == override_id]
    with legible(f"the state of override {override_id}"):
        body, counted = json.loads(confirmed), json.loads(counts)
        _require_figures(body, counted)
        return Override(
            override_id=override_id, plan_id=plan_id, state=OverrideState(state), started_at=moment(started),
            who=body["by"], reason=body["reason"], ticket=body["ticket"], counts=counted,
            owner=own[0].owner if own else "", alive=any(lease.alive(now) for lease in own),
            heartbeat=max((lease.heartbeat for lease in own), default=None), note=original([(note,)], 0)[0][0],
            confirmed=body, result=None if result is None else _result(json.loads(result)),
            undone_by=tuple(undo for undone, undo in undos if undone == override_id),
        )


def _require_figures(confirmed: dict[str, Any], counts: dict[str, int]) -> None:
    """Raise one of many errors unless these can be shown and summed up."""
    sum(counts.values())
    confirmed["items"] + sum(part["changes"] for part in confirmed["parts"])


def _result(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a result record. Raises one of many errors if it cannot be read."""
    ResultCounts.of_record(body)
    return body


def _in_words(confirmed: Mapping[str, Any], outcome: str, detail: str) -> str:
    action, override_id = str(confirmed["action"]), confirmed["override_id"]
    label = outcome_label(outcome, action)
    done = f"{label} ({detail})" if detail else label
    return f"{action.replace('_', ' ')} by {confirmed['by']}: {done}; {confirmed['reason']} [{override_id}]"
