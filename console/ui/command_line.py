"""The command line that does the same as a screen, to paste into an incident channel or to run again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from console.core.backend import Action, Attempts
from console.core.capabilities import DISCARD_AS
from console.core.pace import Now
from console.core.plan import Marked, Plan, Selection
from console.core.query import Filter, Sort
from console.core.session import Session
from console.xdg import config_folder


def command_line(session: Session, words: Sequence[str]) -> str:
    """`retriage` with these words, quoted for a shell. It names the config unless that is the default one."""
    config = [] if session.config in ("", str(config_folder() / "config.yaml")) else ["--config", session.config]
    return shlex.join(["retriage", *config, *words])


def filter_words(filter: Filter, sort: Sort | None = None) -> list[str]:
    """The options of a command for this filter and order; none for the defaults."""
    where = ["--where", str(filter)] if filter.terms else []
    return where + (["--sort", str(sort)] if sort is not None and sort.field is not None else [])


def plan_words(plan: Plan, selection: Selection | None, reason: str, ticket: str = "") -> list[str]:
    """The words of the command that makes, confirms and carries out the same plan."""
    words = []
    if plan.undo_of is not None or selection is None:
        words += ["overrides", "undo", plan.undo_of or ""]
    else:
        words += [str(plan.operation.action), *_selected(selection), *_options(plan)]
    words += ["--reason", reason]
    if ticket:
        words += ["--ticket", ticket]
    return [*words, "--confirm", str(plan.changes)]


def approval_words(plan: Plan) -> list[str]:
    """The words of the command that approves the proposal of this plan."""
    return ["proposals", "approve", plan.id, "--confirm", str(plan.changes)]


def _selected(selection: Selection) -> list[str]:
    if isinstance(selection, Marked):
        return [word for key in selection.keys for word in ("--key", str(key))]
    text = str(selection.filter)
    words = ["--where", text] if text else []
    if selection.limit is not None:
        words += ["--limit", str(selection.limit), *(["--sort", str(selection.sort)] if selection.sort.field else [])]
    return [*words, "--all"] if selection.everything and not selection.filter.narrows else words


def _options(plan: Plan) -> list[str]:
    operation = plan.operation
    words = [] if operation.action != Action.REQUEUE or operation.attempts is Attempts.KEEP else ["--attempts", "reset"]
    if operation.action == Action.REQUEUE and plan.pace != Now():
        words += ["--pace", str(plan.pace)]
    for flag in sorted(operation.flags):
        way = flag.startswith(DISCARD_AS)
        words += ["--as", flag.removeprefix(DISCARD_AS)] if way else [f"--{flag.replace('_', '-')}"]
    return words
