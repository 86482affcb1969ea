"""The report about one override, for an auditor: who, why, the plan, the outcomes and the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from console.core.faults import Fault, Refused
from console.core.override import ItemOutcome, Override, outcome_label, outcome_summary
from console.core.plan import FIRST_SKIPPED, Plan
from console.core.ports import Record, Trail
from console.core.recovery import ItemResult
from console.core.session import Session
from console.core.text import instant, plural
from console.report.document import Block, Document, FactList, Heading, Paragraph, Table

_KINDS = (
    "planned", "submitted", "confirmed", "intent", "outcome", "takeover", "requested", "state", "settle", "late",
    "result", "anchor", "refusal",
)
_PAGE = 1_000
_ABOUT_A_PLAN = ("planned", "submitted", "refusal")
_FACTS = ("login", "uid", "host", "tty", "ssh_peer", "version")
_SERVER_FACTS = {"session_user": "database role", "address": "address"}
"""What the trail's server says about a writer, and its name in the report."""


def audit(session: Session, override_id: str) -> Document:
    """Everything the trail knows about an override, and whether the trail is intact."""
    if session.trail is None:
        raise Refused("There is no trail to report from")
    override = session.trail.override(override_id)
    title = f"Override {override.override_id}"
    return Document(title, _blocks(session, session.trail, override, title))


def _blocks(session: Session, trail: Trail, override: Override, title: str) -> Iterator[Block]:
    plan = trail.plan(override.plan_id)
    yield Heading(1, title)
    label = override.state_label
    yield Paragraph(f"{label[:1].upper()}{label[1:]}. All times are UTC.")
    if override.note:
        yield Paragraph(override.note, warning=True)
    results, summary = _results(session, trail, override)
    yield from _who(trail, override)
    yield from _planned(plan)
    yield Heading(2, "What was done")
    yield FactList([
        ("Written", outcome_summary(override.counts, override.action, session.actions)),
        ("Result", summary),
        *([("Undone by", ", ".join(override.undone_by))] if override.undone_by else []),
        *([("Undo of", override.undo_of)] if override.undo_of else []),
    ])
    yield from _verification(session, trail)
    yield Heading(2, "Records")
    records = _records(trail, override)
    yield Table(("record", "at", "kind", "by", "hash"), records, frozenset({0}), frozenset({4}), frozenset({1, 2}))
    yield Heading(2, "Items")
    items = _items(trail, override, session, results)
    yield Table(("item", "written", "result", "detail"), items, long=frozenset({0}), whole=frozenset({1, 2}))
    yield from _skipped(trail, plan)


def _who(trail: Trail, override: Override) -> Iterator[Block]:
    confirmed = override.confirmed
    yield Heading(2, "Who and why")
    yield FactList([
        ("Who", override.who), ("Why", override.reason), ("Ticket", override.ticket or "none"),
        ("Confirmed at", instant(override.started_at)), ("Confirmed count", str(confirmed.get("count", ""))),
        *_person(confirmed),
    ])
    if override.proposed_by:
        proposal = trail.proposal(override.plan_id)
        yield Heading(2, "The proposal that this approved")
        yield FactList([
            ("Proposed by", proposal.proposer), ("Why", proposal.reason),
            ("Proposed at", instant(proposal.submitted_at)), *_person(proposal.submitted),
        ])


def _person(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a record says about who wrote it."""
    server = body.get("server")
    said = server if isinstance(server, Mapping) else {}
    return [
        *_named("", body.get("facts")), *_named(" (claimed)", body.get("claims")),
        *((label, str(said[name])) for name, label in _SERVER_FACTS.items() if said.get(name) not in (None, "")),
    ]


def _named(suffix: str, values: object) -> list[tuple[str, str]]:
    if not isinstance(values, Mapping):
        return []
    return [(f"{name}{suffix}", str(values[name])) for name in _FACTS if values.get(name) not in (None, "")]


def _planned(plan: Plan) -> Iterator[Block]:
    body: Mapping[str, Any] = plan.body()
    yield Heading(2, "What was planned")
    yield FactList([
        ("Plan", plan.id), ("Hash", plan.hash), ("Action", str(plan.operation.action).replace("_", " ")),
        ("Attempts", plan.operation.attempts.value), ("Pace", str(plan.pace)),
        ("Switches", ", ".join(sorted(flag.replace("_", " ") for flag in plan.operation.flags)) or "none"),
        ("Selection", str(body.get("selection", ""))), ("Items to change", str(plan.changes)),
        ("Systems", ", ".join(f"{part.backend} {part.changes}" for part in plan.parts)),
        ("Causes", ", ".join(f"{cause} {count}" for cause, count in plan.by_cause.items()) or "none"),
    ])
    if plan.skipped:
        yield Table(("skipped because", "items"), [(why, str(count)) for why, count in plan.skipped.items()],
                    frozenset({1}))


def _verification(session: Session, trail: Trail) -> Iterator[Block]:
    yield Heading(2, "Verification of the trail")
    try:
        found = trail.verified(session.anchor_file)
    except Fault as fault:
        yield Paragraph(str(fault), warning=True)
        return
    if not found.ok:
        yield Paragraph(f"The trail is broken: record {found.first_bad}: {found.what}", warning=True)
        return
    head = next(iter(trail.newest(limit=1)), None)
    yield Paragraph(f"Intact: {found.records} {plural(found.records, 'record')}. {found.anchor_summary}")
    if head is not None:
        yield FactList([("Chain head", f"record {head.seq}"), ("Hash", head.hash)])


def _records(trail: Trail, override: Override) -> Iterator[tuple[str, ...]]:
    after = 0
    while page := trail.records_of(_KINDS, after=after, limit=_PAGE):
        for record in page:
            if override.override_id == record.body.get("override_id") or _is_its_plan(record, override):
                by = str(record.body.get("by", ""))
                yield str(record.seq), instant(record.at), record.kind.replace("_", " "), by, record.hash
        after = page[-1].seq


def _is_its_plan(record: Record, override: Override) -> bool:
    return record.kind in _ABOUT_A_PLAN and record.body.get("plan_id") == override.plan_id


def _results(session: Session, trail: Trail, override: Override) -> tuple[dict[int, ItemResult], str]:
    """The results of the items: the recorded ones, or else what their systems show now."""
    if override.results is not None:
        batches = trail.item_results(override.override_id)
        return {one.ordinal: one for batch in batches for one in batch}, override.results.summary()
    if session.operations is None:
        return {}, "not known yet"
    watch = session.operations.watch(override.override_id)
    found = {one.ordinal: one for batch in watch.read_all() for one in batch}
    if not found:
        return {}, "nothing to follow"
    return found, f"{watch.progress.summary()} (read for this report; no result is recorded yet)"


def _items(
    trail: Trail, override: Override, session: Session, results: Mapping[int, ItemResult]
) -> Iterator[tuple[str, ...]]:
    """Every item that was written or tried, with its result."""
    outcomes: dict[int, ItemOutcome] = {
        one.ordinal: one for batch in trail.outcomes(override.override_id) for one in batch
    }
    for ordinal, item in sorted(outcomes.items()):
        result = results.get(ordinal)
        became = "" if result is None else result.result.label
        if result is not None and result.cause:
            became += f" ({result.cause})"
        yield item.key, outcome_label(item.outcome, override.action, session.actions), became, item.detail


def _skipped(trail: Trail, plan: Plan) -> Iterator[Block]:
    if not plan.skipped:
        return
    yield Heading(2, "Items that were skipped")
    rows = ((row.key, row.skipped or "") for batch in trail.rows(plan.id, FIRST_SKIPPED, 2**62) for row in batch)
    yield Table(("item", "why"), rows, long=frozenset({0, 1}))
