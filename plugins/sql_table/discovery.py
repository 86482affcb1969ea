"""Examines a database for `retriage map`: finds a preset that fits, or proposes a mapping for one of its tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from console.core.capabilities import FoundQueue
from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, NotPermitted, Unreachable, UsageFault
from console.core.policy import PolicyOverride
from console.core.text import closest
from console.sql.open_database import open_any_database
from console.sql.row_security import row_security_findings
from plugins.sql_table.checks import prediction_findings
from plugins.sql_table.inference import TableGuess, guess_columns
from plugins.sql_table.layout import MappedLayout, own_policy
from plugins.sql_table.mapping import Options
from plugins.sql_table.mapping_yaml import comment, mapping_yaml, scalar
from plugins.sql_table.presets import mapping_of, preset, preset_dialect, preset_names, title_of
from plugins.sql_table.resolved import resolve
from plugins.sql_table.tables import all_tables, find_table, unreadable_tables

if TYPE_CHECKING:
    from console.sql.open_database import AnyDatabase
    from plugins.sql_table.backend import SqlTable

_LIKE_A_QUEUE = 4
_NAME = "mapped"
_NO_ANSWER = (Unreachable, DeadlineExceeded, BackendBusy)
"""Faults that say nothing about a table. What a slow server did not answer must not become another proposal."""
_NOT_USABLE = "Not usable yet, correct it first."


@dataclass(frozen=True, slots=True)
class MappingProposal:
    """A mapping or config section as YAML, notes for the user, and the backend it would attach."""

    text: str
    notes: tuple[str, ...]
    backend: SqlTable | None


def discover(
    kind: type[SqlTable], url: str, table: str | None, deadline: timedelta, shown_url: str
) -> MappingProposal:
    """Propose a config section for a preset, or a mapping for `table` or for the table that looks most like a queue.

    `shown_url` is the URL without its password, for the proposed text.
    """
    database = open_any_database(url, read_only=True, deadline=deadline)
    try:
        names = all_tables(database)
        if table is None and (found := list(_recognised(database, names, url))):
            return _as_presets(kind, found, shown_url, deadline)
        guesses, others = _chosen(database, names, table)
        text = mapping_yaml(database, guesses)
    finally:
        database.close()
    notes = [f"Proposed for table {guesses.table.full_name}. Each guess has its reason as a comment."]
    if guesses.is_no_queue:
        notes.append(f"Probably no queue: {guesses.is_no_queue}.")
    backend, problem = _opened(kind, url, text, deadline)
    if backend is not None and guesses.knows_no_status:
        column = guesses.parts["status"].column
        notes.append(f"No value of {column} is known, so this only reads, and shows every item as unknown.")
    if others:
        notes.append(f"Other tables that look like a queue: {', '.join(others)}. Choose one with --table.")
    header = _header(guesses.table.full_name, shown_url) if backend else comment(problem[0])
    return MappingProposal(header + text, (*notes, *problem), backend)


def find_queues(kind: type[SqlTable], url: str, deadline: timedelta) -> list[FoundQueue]:
    """What `retriage attach` offers: the presets that fit, or else the table that looks most like a queue.

    A guessed mapping only reads. What a requeue would write is for a person to check, with `retriage map`.
    """
    database = open_any_database(url, read_only=True, deadline=deadline)
    try:
        names = all_tables(database)
        found = _recognised(database, names, url)
        if found:
            return [_as_found(options) for options in found]
        _require_readable(database, names)
        try:
            guess, others = _chosen(database, names, None)
        except UsageFault:
            return []
        if guess.knows_no_status:
            return []
        text = mapping_yaml(database, guess)
    finally:
        database.close()
    mapping = {key: value for key, value in yaml.safe_load(text).items() if key != "requeue"}
    backend, _ = _opened(kind, url, yaml.safe_dump(mapping), deadline)
    if backend is None or guess.is_no_queue:
        return []
    backend.close()
    name = re.sub("[^a-z0-9]+", "-", guess.table.name.lower()).strip("-") or "queue"
    note = "Recognised by its column names, and attached for reading. `retriage map` also proposes a requeue."
    if others:
        note += f" Other tables that look like a queue: {', '.join(others)}."
    return [FoundQueue(name, f"table {guess.table.full_name}", {"url": url, "mapping": mapping}, note, guessed=True)]


def _require_readable(database: AnyDatabase, names: Sequence[tuple[str | None, str]]) -> None:
    """Raise NotPermitted if our role may not read a table that is named like one of a known queue, or no table."""
    known = {mapping.table for mapping in map(preset, preset_names())}
    hidden = [(schema, name) for schema, name in unreadable_tables(database) if not names or name in known]
    if hidden:
        schema, name = next((one for one in hidden if one[1] in known), hidden[0])
        table = f"{schema}.{name}" if schema else name
        fix = "Grant it SELECT on the tables of the queue, and USAGE on their schema."
        raise NotPermitted(f"this role may not read {table}", where=database.place, fix=fix)


def _as_found(options: Options) -> FoundQueue:
    assert options.preset is not None
    mapping = mapping_of(options)
    table = f"{mapping.schema_}.{mapping.table}" if mapping.schema_ else mapping.table
    given = {"preset": options.preset, "url": options.url, **({"schema": options.schema_} if options.schema_ else {})}
    name = re.sub("_(sqlite|mysql)$", "", options.preset).replace("_", "-")
    return FoundQueue(name, f"{title_of(options.preset)}, table {table}", given)


# --- presets ------------------------------------------------------------------------------------------------


def _recognised(
    database: AnyDatabase, names: Sequence[tuple[str | None, str]], url: str
) -> list[Options]:
    """The options for each preset whose tables exist in this database."""
    found = []
    for name in preset_names():
        if preset_dialect(name) != database.dialect.name:
            continue
        mapping = preset(name)
        schemas = [schema for schema, table in names if table == mapping.table]
        for schema in schemas:
            given = {"url": url, "preset": name}
            if schema != mapping.schema_ and schema is not None:
                given["schema"] = schema
            options = Options.model_validate(given)
            try:
                MappedLayout(_NAME, resolve(database, mapping_of(options), options), own_policy(mapping))
            except _NO_ANSWER:
                raise
            except BackendFault:
                continue  # another table with the same name
            found.append(options)
    return found


def _as_presets(
    kind: type[SqlTable], found: Sequence[Options], shown_url: str, deadline: timedelta
) -> MappingProposal:
    lines = ["# For the config file: this database fits a preset.", "backends:"]
    for options in found:
        assert options.preset is not None
        name = options.preset.replace("_", "-")
        more = f", schema: {scalar(options.schema_)}" if options.schema_ else ""
        lines.append(f"  {name}: {{plugin: sql_table, preset: {options.preset}, url: {scalar(shown_url)}{more}}}")
    first = found[0]
    names = ", ".join(str(options.preset) for options in found)
    note = f"Recognised: {names}. Use --table NAME to get a mapping for one table instead."
    backend = kind.open(
        str(first.preset).replace("_", "-"), first, PolicyOverride(), read_only=True, deadline=deadline
    )
    return MappingProposal("\n".join(lines) + "\n", (note,), backend)


# --- tables -------------------------------------------------------------------------------------------------


def _chosen(
    database: AnyDatabase, names: Sequence[tuple[str | None, str]], wanted: str | None
) -> tuple[TableGuess, list[str]]:
    if wanted is not None:
        return _asked_for(database, names, wanted), []
    guessed = [one for schema, name in names if (one := _guessed(database, schema, name))]
    likely = sorted((one for one in guessed if one.score >= _LIKE_A_QUEUE), key=lambda one: -one.score)
    if not likely:
        listed = ", ".join(f"{schema}.{name}" if schema else name for schema, name in names[:20])
        raise UsageFault(
            "No table in this database looks like a queue", fix=f"Name one with --table. Tables: {listed or 'none'}."
        )
    return likely[0], [one.table.full_name for one in likely[1:6]]


def _guessed(database: AnyDatabase, schema: str | None, name: str) -> TableGuess | None:
    """Guesses about one table; None if it cannot be read, for example because it needs an extension."""
    try:
        table = find_table(database, schema, name)
        return guess_columns(database, table) if table else None
    except _NO_ANSWER:
        raise
    except BackendFault:
        return None


def _asked_for(database: AnyDatabase, names: Sequence[tuple[str | None, str]], wanted: str) -> TableGuess:
    schema, dot, rest = wanted.rpartition(".")
    for place in ((None, wanted), *([(schema, rest)] if dot else [])):
        if table := find_table(database, *place):
            return guess_columns(database, table)
    known = [f"{schema}.{name}" if schema else name for schema, name in names]
    close = closest(wanted, known)
    fix = f"Did you mean {close}?" if close else f"Tables: {', '.join(known[:20]) or 'none'}."
    raise UsageFault(f"There is no table {wanted!r}", fix=fix)


def _header(table: str, url: str) -> str:
    advice = "Read and correct it, save it next to the config file and name it there:"
    section = comment(f"  NAME: {{plugin: sql_table, url: {scalar(url)}, mapping: FILE}}")
    return comment(f"A proposed mapping for {table}. {advice}") + section


def _opened(
    kind: type[SqlTable], url: str, text: str, deadline: timedelta
) -> tuple[SqlTable | None, tuple[str, ...]]:
    """Open the proposed backend; if that fails, return the reason as a note for the user."""
    try:
        options = Options.model_validate({"url": url, "mapping": yaml.safe_load(text)})
        backend = kind.open(_NAME, options, PolicyOverride(), read_only=True, deadline=deadline)
        backend.attached  # noqa: B018  attaches
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, (f"{_NOT_USABLE} {where}: {first['msg']}.",)
    except BackendFault as fault:
        return None, (f"{_NOT_USABLE} {fault.detail}.",)
    refused = [*row_security_findings(backend), *prediction_findings(backend)]
    if refused:
        backend.close()
        return None, (f"{_NOT_USABLE} {refused[0].message}",)
    return backend, ()
