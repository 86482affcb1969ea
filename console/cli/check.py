"""`check`: the config, every backend, every policy: what is wrong, and what to do about it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from console.cli.doors import Doors
from console.cli.render import Column, Shape, print_rows
from console.cli.round import SOME_MISSING, Round, exit_code
from console.core.backend import Backend, Finding, PageRequest, Severity
from console.core.desk import Desk
from console.core.faults import BackendFault, Fault
from console.core.policy_lint import lint
from console.core.ports import Book
from console.core.query import Filter

FIELDS = ("backend", "subject", "severity", "message", "fix")
_WORDS = {Severity.OK: "✓ ok", Severity.WARNING: "! warning", Severity.ERROR: "✗ error"}
_STYLES = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


@dataclass(frozen=True, slots=True)
class Line:
    """A finding, and on what: a backend's name, or empty for the console itself."""

    backend: str
    finding: Finding


@dataclass(slots=True)
class Examination:
    """Everything that is looked at, in order; who did not answer is known once it has been gone through."""

    desk: Desk
    asked: Round
    faults: dict[str, Fault] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    errors: int = 0

    def __iter__(self) -> Iterator[Line]:
        yield Line("", Finding(Severity.OK, "config", f"{self.desk.config} is valid"))
        if self.desk.read_only:
            yield Line("", Finding(Severity.OK, "mode", "read-only: nothing can be changed"))
        if self.desk.book is not None:
            yield Line("", self._trail(self.desk.book))
        for name, fault in self.asked.faults.items():
            yield Line(name, _failed("plugin", fault))
        for backend in self.asked.backends:
            for finding in self._of(backend):
                self.errors += finding.severity is Severity.ERROR
                yield Line(backend.name, finding)

    def _trail(self, book: Book) -> Finding:
        """Only that it can be read and what is open in it; `trail verify` reads all of it."""
        try:
            open_intents = book.unresolved()
        except Fault as fault:
            self.errors += 1
            return _failed("trail", fault)
        if open_intents:
            return Finding(Severity.WARNING, "trail", f"{len(open_intents)} intents without an outcome",
                           "`retriage trail unresolved` lists them, `retriage overrides resume` settles them.")
        return Finding(Severity.OK, "trail", "readable, nothing unresolved")

    def _of(self, backend: Backend) -> Iterator[Finding]:
        try:
            findings = backend.check(self.desk.clock)
            self.answered.add(backend.name)
            yield Finding(Severity.OK, "reachable", backend.place)
            yield from findings
            yield from _unreadable(backend)
        except BackendFault as fault:
            self.faults[backend.name] = fault
            yield _failed("reachable", fault)
        yield from _policy(backend)


def _failed(subject: str, fault: Fault) -> Finding:
    where = f"{fault.where}: " if fault.where else ""
    detail = f": {fault.detail}" if fault.detail else ""
    return Finding(Severity.ERROR, subject, f"{where}{fault.sentence}{detail}", fault.fix)


def _unreadable(backend: Backend) -> Iterator[Finding]:
    """Columns of another type, or a view in a table's place, are found by reading only."""
    try:
        backend.page(PageRequest(Filter(), backend.now(), limit=1))
    except BackendFault as fault:
        yield _failed("reading", fault)


def _policy(backend: Backend) -> Iterator[Finding]:
    warnings = lint(backend.policy)
    if not warnings:
        yield Finding(Severity.OK, "policy", str(backend.policy))
    for warning in warnings:
        yield Finding(Severity.WARNING, "policy", warning.message, warning.fix)


def check(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    examination = Examination(desk, Round(desk, args.backend, Filter()))
    print_rows(examination, Shape(FIELDS, _record, _COLUMNS), args.format)
    faults = {**examination.asked.faults, **examination.faults}
    code = exit_code(faults.values(), bool(examination.answered))
    return code or (SOME_MISSING if examination.errors else code)


def _record(line: Line) -> dict[str, Any]:
    finding = line.finding
    return {
        "backend": line.backend or None, "subject": finding.subject, "severity": finding.severity.value,
        "message": finding.message, "fix": finding.fix,
    }


def _words(line: Line) -> str:
    finding = line.finding
    return f"{finding.message}. {finding.fix}" if finding.fix else finding.message


_COLUMNS: tuple[Column[Line], ...] = (
    Column("backend", lambda line: line.backend or "(console)"),
    Column("subject", lambda line: line.finding.subject),
    Column("result", lambda line: _WORDS[line.finding.severity], lambda line: _STYLES[line.finding.severity]),
    Column("", _words, least=30, wraps=True),
)
