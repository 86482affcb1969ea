"""`check`: examine the config, the trail, every backend and its policy, and say what to fix."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from console.cli.advice import advice_text
from console.cli.backend_selection import SOME_FAILED, BackendSelection, exit_code
from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.render import RowFormat, print_rows
from console.core.access import Approval, Compare, table
from console.core.backend import Backend, Finding, PageRequest, Severity
from console.core.budget import FEWEST_ROUND_TRIPS, ReadingBudget, metered
from console.core.faults import BackendFault, Fault, sentences
from console.core.item import ItemKey
from console.core.policy_lint import lint
from console.core.ports import Trail, Verification, latest_time
from console.core.query import Filter
from console.core.session import Session
from console.core.text import and_list, duration, plural

FIELDS = ("backend", "subject", "severity", "message", "fix")
_CLOCKS_DIFFER = timedelta(seconds=5)
_LATELY = 500
"""How many of the newest records are read to find shared roles."""
_WORDS = {Severity.OK: "✓ ok", Severity.WARNING: "! warning", Severity.ERROR: "✗ error"}
_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A finding about a backend, or about the console itself when `backend` is empty."""

    backend: str
    finding: Finding


@dataclass(slots=True)
class Examination:
    """Yields the findings one by one. After that, `faults`, `answered` and `errors` are complete."""

    session: Session
    selection: BackendSelection
    faults: dict[str, Fault] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    errors: int = 0

    def __iter__(self) -> Iterator[CheckRow]:
        yield CheckRow("", Finding(Severity.OK, "config", f"{self.session.config} is valid"))
        if self.session.read_only:
            yield CheckRow("", Finding(Severity.OK, "mode", "read-only: nothing can be changed"))
        if self.session.trail is not None:
            trail = self.session.trail
            for finding in (*self._trail(trail), *self._clock(trail), *self._rules(trail)):
                self.errors += finding.severity is Severity.ERROR
                yield CheckRow("", finding)
        for name, fault in self.selection.faults.items():
            yield CheckRow(name, _failed("plugin", fault))
        for backend in self.selection.backends:
            for finding in _each_once(self._backend_findings(backend)):
                self.errors += finding.severity is Severity.ERROR
                yield CheckRow(backend.name, finding)

    def _trail(self, trail: Trail) -> Iterator[Finding]:
        """Whether the trail can be read, is intact, can be written by others, and has unresolved changes."""
        try:
            found, open_intents, exposed = trail.verified(self.session.anchor_file), trail.unresolved(), trail.exposed()
        except Fault as fault:
            yield _failed("trail", fault)
            return
        if not found.ok:
            yield Finding(
                Severity.ERROR, "trail", f"broken at record {found.first_bad}: {found.what}",
                "Do not change it; compare it with a backup.",
            )
            return
        yield Finding(Severity.OK, "trail", f"readable and intact: {found.records} {plural(found.records, 'record')}")
        if exposed:
            yield Finding(
                Severity.WARNING, "trail", f"{exposed}: records could be forged", "Remove that right."
            )
        if self.session.anchor is not None:
            yield self._anchors(found)
        if open_intents:
            yield Finding(
                Severity.WARNING, "trail", f"{len(open_intents)} interrupted writes have no recorded outcome",
                "List them with `retriage trail unresolved`; `retriage overrides resume` finds out what happened.",
            )

    def _anchors(self, found: Verification) -> Finding:
        if self.session.anchor_file is None:
            return Finding(
                Severity.OK, "anchor", "syslog cannot be read back",
                "Keep the log, and give `retriage trail verify --anchor` a copy of it.",
            )
        complete = (bool(found.anchors) and not found.anchors_missing) or not found.records
        return Finding(Severity.OK if complete else Severity.WARNING, "anchor", found.anchor_summary)

    def _clock(self, trail: Trail) -> Iterator[Finding]:
        """Whether this machine's clock is behind the trail's last record."""
        with suppress(Fault):  # `_trail` reports it
            now = self.session.clock.now()
            for last in trail.newest(limit=1):
                latest = latest_time(last.at, last.body)
                if latest > now + _CLOCKS_DIFFER:
                    yield Finding(
                        Severity.WARNING, "clock", f"it is {duration(latest - now)} behind the trail's last record",
                        "Set the clock of this machine, or find out who wrote that record.",
                    )

    def _rules(self, trail: Trail) -> Iterator[Finding]:
        """The rules of the config per backend, and how strong they are."""
        rules = self.session.rules
        for backend, text in table(rules, self.session.names):
            yield Finding(Severity.OK, "rules", f"{backend}: {text}")
        if rules.permissions or rules.limits:
            yield Finding(
                Severity.OK, "rules", "permissions and limits prevent mistakes. They do not stop somebody who"
                " changes this config or the program; only rights in the databases do",
            )
        for rule in rules.approvals:
            yield from _approval(rule, trail)

    def _backend_findings(self, backend: Backend) -> Iterator[Finding]:
        if backend.name in self.session.read_only_backends:
            yield Finding(Severity.OK, "mode", "read-only by the config: nothing can be changed here")
        try:
            findings = backend.check(self.session.clock)
            self.answered.add(backend.name)
            yield Finding(Severity.OK, "reachable", backend.place)
            yield from findings
            yield from _unreadable(backend)
            lacks_index = any(one.subject == "index" and one.severity is Severity.WARNING for one in findings)
            yield _load(backend, self.session, lacks_index=lacks_index)
        except BackendFault as fault:
            self.faults[backend.name] = fault
            yield _failed("reachable", fault)
        yield from _policy(backend)


def _approval(rule: Approval, trail: Trail) -> Iterator[Finding]:
    """How strong the rule is that somebody else approves."""
    where = f"somebody else approves plans of {rule.first} items or more in {and_list(rule.backends)}"
    if rule.compare is Compare.LOGIN:
        yield Finding(
            Severity.OK, "rules", f"{where}. Only their logins are compared, because they share a database role. That"
            " prevents mistakes only",
            "Give each person a role of their own, and set `compare: role`.",
        )
        return
    yield Finding(
        Severity.OK, "rules", f"{where}. The trail's database refuses an approval by the role that proposed. Only this"
        " program refuses to apply a plan without an approval; `trail verify` finds one that was applied",
    )
    with suppress(Fault):  # `_trail` reports it
        if role := trail.owning_role():
            yield Finding(
                Severity.WARNING, "rules", f"the database role {role} owns the trail or is a superuser. It could drop"
                " the constraint, so this rule only prevents its mistakes",
                "Let a role that nobody uses own the trail's tables, and grant the other roles what they need.",
            )
        for role, logins in shared_roles(trail).items():
            yield Finding(
                Severity.WARNING, "rules", f"{', '.join(logins)} use the same database role {role}: none of them can"
                " approve what another one proposed",
                "Give each person a role of their own, or set `compare: login` for this rule.",
            )


def shared_roles(trail: Trail) -> dict[str, list[str]]:
    """Database roles that several people used lately, with their logins."""
    used: dict[str, set[str]] = {}
    for record in trail.newest(limit=_LATELY):
        server, facts = record.body.get("server"), record.body.get("facts")
        if isinstance(server, dict) and isinstance(facts, dict) and facts.get("login"):
            used.setdefault(str(server.get("session_user")), set()).add(str(facts["login"]))
    return {role: sorted(logins) for role, logins in used.items() if len(logins) > 1}


def _each_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings without repeats: two checks may find the same, such as a missing privilege that makes reading fail."""
    known: set[str] = set()
    for finding in findings:
        if finding.message not in known:
            known.add(finding.message)
            yield finding


def _failed(subject: str, fault: Fault) -> Finding:
    message = f"{fault.where}: {fault.message}" if fault.where else fault.message
    advice = advice_text(fault.advice) if fault.advice is not None else ""
    return Finding(Severity.ERROR, subject, message, f"{fault.fix} {advice}".strip())


def _unreadable(backend: Backend) -> Iterator[Finding]:
    """Read one item. Nothing else finds columns of a wrong type, or a view instead of a table."""
    try:
        backend.page(PageRequest(Filter(), backend.now(), limit=1))
    except BackendFault as fault:
        yield _failed("reading", fault)


def _load(backend: Backend, session: Session, *, lacks_index: bool) -> Finding:
    """What an open console will cost here: the figures of the Overview and of the list, read once and timed.

    Where an index is missing, also about what it would cost with one: as much as the rows of a page by their keys.
    """
    now = backend.now()
    shown: list[ItemKey] = []

    def page() -> None:
        shown[:] = [item.key for item in backend.page(PageRequest(Filter(), now)).items]

    budget, indexed = (ReadingBudget(session.load, session.refresh.total_seconds()) for _ in range(2))
    for _ in range(FEWEST_ROUND_TRIPS):
        with metered() as trip:
            backend.now()
        for each in (budget, indexed):
            each.answered_in(trip.seconds)
    try:
        _time(budget, {"counts": lambda: backend.counts(Filter(), now), "page": page})
        if lacks_index and shown:
            by_key = partial(backend.items, shown, now)
            _time(indexed, {"counts": by_key, "page": by_key})
    except BackendFault as fault:
        return _failed("load", fault)
    taken = budget.per_minute()
    message = f"an open console takes about {_seconds(taken)} of its time per minute, {_seconds(taken * 60)} per hour"
    if budget.slowest() > 2 * budget.refresh:
        message += f"; counts or pages are read every {duration(timedelta(seconds=round(budget.slowest())))}"
    if lacks_index and shown and indexed.per_minute() < taken / 2:
        message += f". The index would make it about {_seconds(indexed.per_minute())} per minute"
    return Finding(Severity.OK, "load", message)


def _time(budget: ReadingBudget, questions: Mapping[str, Callable[[], object]]) -> None:
    for question, ask in questions.items():
        ask()  # the first time, the statement is built and its plan is made
        with metered() as meter:
            ask()
        budget.note(question, meter, 0.0)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{max(value, 0.01):.2f} s"


def _policy(backend: Backend) -> Iterator[Finding]:
    warnings = lint(backend.policy)
    if not warnings:
        yield Finding(Severity.OK, "policy", str(backend.policy))
    for warning in warnings:
        yield Finding(Severity.WARNING, "policy", warning.message, warning.fix)


def check(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    examination = Examination(session, BackendSelection(session, args.backend, Filter()))
    print_rows(examination, RowFormat(FIELDS, _record, _COLUMNS), args.format)
    faults = {**examination.selection.faults, **examination.faults}
    code = exit_code(faults.values(), bool(examination.answered))
    return code or (SOME_FAILED if examination.errors else code)


def _record(row: CheckRow) -> dict[str, Any]:
    finding = row.finding
    return {
        "backend": row.backend or None, "subject": finding.subject, "severity": finding.severity.value,
        "message": finding.message, "fix": finding.fix,
    }


def _words(row: CheckRow) -> str:
    finding = row.finding
    return sentences(finding.message, finding.fix)


_COLUMNS: tuple[Column[CheckRow], ...] = (
    Column("backend", lambda row: row.backend or "(console)"),
    Column("subject", lambda row: row.finding.subject),
    Column("result", lambda row: _WORDS[row.finding.severity], lambda row: _STYLES[row.finding.severity]),
    Column("", _words, least=30, wraps=True),
)
