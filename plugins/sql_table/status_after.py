"""The native status that a row will have after a requeue or discard, by the mapping's own SQL over the new values."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import Phase
from console.sql.layout import Expression
from console.sql.table import Meaning, phase_of
from console.sql.values import castable, plain
from plugins.sql_table.change_schema import Assignment
from plugins.sql_table.fragments import formula
from plugins.sql_table.image import ImageColumn, RowImage, requeue_assignments
from plugins.sql_table.mapping import Source, TableMapping
from plugins.sql_table.mapping_types import TABLE_ALIAS, Scalar
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.statuses import Statuses, text_of

_BECOMES: Mapping[Meaning, frozenset[str]] = {
    Phase.FAILED: frozenset({"failed", "terminal"}),
    Condition.TERMINAL: frozenset({"terminal"}),
    Phase.RUNNING: frozenset({"stuck"}),
}
"""The conditions in which a requeue may find a row whose status means this."""
_ANYTHING = "so it could be anything"
_WORD = re.compile(r"\w+")


def require_ready(resolved: ResolvedMapping, statuses: Statuses, image: RowImage) -> None:
    """Raise WrongSchema if a requeue leaves the status column with a value that the mapping does not call ready."""
    column = resolved.mapping.status.column
    if column is None:
        return
    meanings = {text_of(value): meaning for value, meaning in statuses.stored.items()}
    ready = ", ".join(value for value, meaning in meanings.items() if phase_of(meaning) is Phase.READY)
    fix = f"Its system takes: {ready}." if ready else "Name the values that its system takes under status.ready."
    written = {loc: one for loc, one in requeue_assignments(image.requeue) if (one.column or loc[-1]) == column}
    for loc, assigned in written.items():
        if is_computed(assigned):
            raise resolved.fault(f"a requeue would compute {column}, {_ANYTHING}", *loc, fix=f"Give a value. {fix}")
        for key in ("value", "later"):
            value = getattr(assigned, key)
            meaning = meanings.get(text_of(value), Phase.UNKNOWN)
            if key in assigned.model_fields_set and phase_of(meaning) is not Phase.READY:
                called = "does not know" if meaning is Phase.UNKNOWN else f"calls {meaning.value}, not ready"
                raise resolved.fault(f"a requeue would write {value!r}, which status {called}", *loc, fix=fix)
    everywhere = all(
        any(loc[1] == "set" or loc[2] == attempts for loc in written)
        for attempts in ("keep", "reset") if getattr(image.requeue.attempts, attempts) is not None
    )
    left = next((
        value for value, meaning in meanings.items() if _BECOMES.get(meaning, frozenset()) & {*image.requeue.conditions}
    ), None)
    if not everywhere and left is not None:
        problem = f"a requeue would leave {column} at {left!r}, which is not ready"
        raise resolved.fault(problem, "requeue", "set", fix=fix)


def require_attempts_left(resolved: ResolvedMapping, image: RowImage, most: int | None) -> None:
    """Raise WrongSchema if a requeue leaves no attempts, or a reset does not start them again. `most` is the limit of
    rows without one of their own."""
    mapping = resolved.mapping
    counters = columns_read(mapping.attempts)
    limit, counter = (source and source.column for source in (mapping.max_attempts, mapping.attempts))
    for attempts in ("keep", "reset"):
        rule = getattr(image.requeue.attempts, attempts)
        if rule is None:
            continue
        numbers = {
            one.column or loc[-1]: (one.value, loc) for loc, one in requeue_assignments(image.requeue)
            if loc[1] == "set" or loc[2] == attempts
            if type(one.value) is int and one.read is None
        }
        written = {
            (one.column or loc[-1]).rpartition(".")[2] for loc, one in requeue_assignments(image.requeue)
            if loc[1] == "set" or loc[2] == attempts
        }
        if rule.effect == "reset" and counters and not counters & written:
            names = " and ".join(sorted(counters & {*resolved.table.columns})) or "attempts"
            what, fix = f"a reset would leave {names} as it is", "Set it to 0, or name another effect."
            raise resolved.fault(what, "requeue", "attempts", attempts, fix=fix)
        allowed, where = numbers.get(limit, (None, ())) if limit else (most, ())
        if allowed is not None and allowed < 1:
            raise resolved.fault(f"a requeue would allow {allowed} attempts", *where, fix="Give a number above 0.")
        used, where = numbers.get(counter, (0, ())) if counter else (0, ())
        fix = "Write 0." if rule.effect == "reset" else "Write a smaller number."
        if allowed is not None and used >= allowed:
            raise resolved.fault(f"a requeue would write {used}, and {allowed} attempts are allowed", *where, fix=fix)
        if rule.effect == "reset" and used > 1:
            raise resolved.fault(f"a reset would write {used}, so the attempts would not start again", *where, fix=fix)


def columns_read(source: Source | None) -> set[str]:
    """The columns that a source reads; for an expression, every word in it."""
    if source is None:
        return set()
    return {source.column} if source.column is not None else {*_WORD.findall(source.expression or "")}


def is_computed(assigned: Assignment) -> bool:
    """Whether no one knows from the mapping what would be written."""
    return "value" not in assigned.model_fields_set or assigned.read is not None or assigned.write is not None


def is_over(meaning: Meaning, mapping: TableMapping) -> bool:
    """Whether an item whose status means this is given up. A failed one is not if it could be discarded again."""
    again = mapping.discard is not None and "failed" in mapping.discard.conditions
    return meaning in (Phase.DONE, Phase.CANCELLED, Condition.TERMINAL) or (meaning is Phase.FAILED and not again)


def require_given_up(resolved: ResolvedMapping, statuses: Statuses) -> None:
    """Raise WrongSchema unless a discard sets the status to what the mapping calls done, cancelled or terminal."""
    column, discard = resolved.mapping.status.column, resolved.mapping.discard
    if column is None or discard is None or discard.delete:
        return
    meanings = {text_of(value): meaning for value, meaning in statuses.stored.items()}
    over = ", ".join(value for value, meaning in meanings.items() if is_over(meaning, resolved.mapping))
    fix = f"Its system never takes: {over}." if over else "Name the values of given up items under status.cancelled."
    assigned = {name: one for name, one in discard.set.items() if (one.column or name) == column}
    if not assigned:
        raise resolved.fault(f"a discard would not change {column}", "discard", "set", fix=fix)
    for name, one in assigned.items():
        if is_computed(one):
            what = f"a discard would compute {column}, {_ANYTHING}"
            raise resolved.fault(what, "discard", "set", name, fix=f"Give a value. {fix}")
        for value in (getattr(one, key) for key in ("value", "later") if key in one.model_fields_set):
            meaning = meanings.get(text_of(value), Phase.UNKNOWN)
            if not is_over(meaning, resolved.mapping):
                called = "does not know" if meaning is Phase.UNKNOWN else f"calls {meaning.value}"
                what = f"a discard would write {value!r}, which status {called}"
                raise resolved.fault(what, "discard", "set", name, fix=fix)


def status_after(resolved: ResolvedMapping, image: RowImage, assigned: Mapping[str, Assignment]) -> Expression | None:
    """The native status that a row will have after a write; None if the assignment itself says it.

    It is a subquery over one row: the row as it is, with the new values in place of the old ones.
    """
    status = resolved.mapping.status
    if status.column is not None:
        return None
    if status.expression is not None:
        native = f"({resolved.read_sql(status.expression)})"
    else:
        cases = [f"WHEN ({resolved.read_sql(case.when)}) THEN {_literal(case.native_status)}" for case in status.cases]
        native = f"(CASE {' '.join(cases)} END)"
    written: dict[str, dict[str, str]] = {TABLE_ALIAS: {}}
    for part in image.parts:
        if part.name in assigned and (part.read is None or part.write is not None):
            alias, column = _place(resolved, part.column)
            written.setdefault(alias, {})[column] = _written(resolved, part, assigned[part.name])
    if resolved.mysql:
        return sa.cast(sa.literal_column(_substituted(native, written)), sa.Text)
    tables = ", ".join(_one_row(resolved, alias, values) for alias, values in written.items())
    typed = native if resolved.sqlite else f"CAST({native} AS TEXT)"
    return sa.literal_column(f"(SELECT {typed} FROM {tables})")


_COLUMN = re.compile(
    r"""(?P<text>'(?:[^']|'')*')|(?<![\w.])(?:(?P<alias>"(?:[^"]|"")*"|[A-Za-z_]\w*)\.)?"""
    r"""(?P<column>"(?:[^"]|"")*"|[A-Za-z_]\w*)(?![\w(.])"""
)


def _substituted(sql: str, written: Mapping[str, Mapping[str, str]]) -> str:
    """The SQL with the new values in place of the columns. MariaDB has no subquery that could name them."""

    def new_value(found: re.Match[str]) -> str:
        if found["text"]:
            return found[0]
        alias, column = (None if name is None else name.strip('"') for name in (found["alias"], found["column"]))
        value = written.get(alias or TABLE_ALIAS, {}).get(column or "")
        return found[0] if value is None else f"({value})"

    return _COLUMN.sub(new_value, sql)


def _place(resolved: ResolvedMapping, column: str) -> tuple[str, str]:
    alias, _, rest = column.partition(".")
    if column not in resolved.table.columns and alias in resolved.joined:
        return alias, rest
    return TABLE_ALIAS, column


def _one_row(resolved: ResolvedMapping, alias: str, values: Mapping[str, str]) -> str:
    quote = resolved.database.dialect.identifier_preparer.quote_identifier
    table = resolved.table if alias == TABLE_ALIAS else resolved.joined[alias][0]
    columns = ", ".join(
        f"{values.get(name, f'{quote(alias)}.{quote(name)}')} AS {quote(name)}" for name in table.columns
    )
    return f"(SELECT {columns}) AS {quote(alias)}"


def _written(resolved: ResolvedMapping, part: ImageColumn, assigned: Assignment) -> str:
    """The new value as SQL. Times are those of this moment: nothing but their order to the clock counts."""
    if assigned.formula is not None:
        made = _formula_sql(formula(assigned.formula).tree, resolved)
    elif assigned.time is not None:
        assert part.time is not None
        made = _literal(plain(part.time.encode(datetime.now(UTC))))
    else:
        made = _literal(assigned.value)
    typed = made if resolved.sqlite or resolved.mysql else f"CAST({made} AS {castable(part.stored.type)})"
    if part.write is None:
        return typed
    if resolved.mysql:
        return resolved.read_sql(part.write, value=typed)
    return f"(SELECT {resolved.read_sql(part.write, value=typed)} FROM {_one_row(resolved, TABLE_ALIAS, {})})"


def _formula_sql(tree: ast.expr, resolved: ResolvedMapping) -> str:
    match tree:
        case ast.Name(id=name):
            alias, column = _place(resolved, name)
            if alias == TABLE_ALIAS and column not in resolved.table.columns:
                return "NULL"  # a part of a JSON column
            quote = resolved.database.dialect.identifier_preparer.quote_identifier
            return f"coalesce({quote(alias)}.{quote(column)}, 0)"
        case ast.BinOp(left=left, op=op, right=right):
            sign = "+" if isinstance(op, ast.Add) else "-"
            return f"({_formula_sql(left, resolved)} {sign} {_formula_sql(right, resolved)})"
        case ast.Call(func=ast.Name(id=function), args=args):
            name = {"greatest": "max", "least": "min"}[function] if resolved.sqlite else function
            listed = ", ".join(_formula_sql(argument, resolved) for argument in args)
            return f"{name}({listed})" if len(args) > 1 else listed
        case ast.Constant(value=int() as number):
            return str(number)
        case _:
            raise AssertionError("formula() allows no other node")


def _literal(value: Scalar | float | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        doubled = value.replace("'", "''")
        return f"'{doubled}'"
    return str(value)
