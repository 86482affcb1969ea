"""Looking at a database somebody wants to attach: a preset it fits, or a first mapping for one of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from console.core.faults import BackendFault, Unreachable, UsageFault
from console.core.policy import PolicyOverride
from console.core.text import closest
from console.sql.opening import open_database
from plugins.sql_table.attaching import attach
from plugins.sql_table.backend import SqlTable
from plugins.sql_table.guessing import Guesses, guess
from plugins.sql_table.mapping import Options
from plugins.sql_table.reading import Reading
from plugins.sql_table.shipped import mapping_of, preset, preset_names
from plugins.sql_table.sketch import scalar, sketch
from plugins.sql_table.tables import all_tables, look_at

if TYPE_CHECKING:
    from plugins.sql_table.tables import AnyDatabase

_LIKE_A_QUEUE = 4
_NAME = "mapped"


@dataclass(frozen=True, slots=True)
class Look:
    """What was found: a text to keep, words about it, and the backend it makes."""

    text: str
    told: tuple[str, ...]
    backend: SqlTable | None


def look(url: str, table: str | None, deadline: timedelta, shown: str) -> Look:
    """A preset's section for the config, or a mapping for `table`, or for what looks most like a queue; `shown` is
    the url without a password, to be written into either."""
    database = open_database(url, read_only=True, deadline=deadline)
    try:
        names = all_tables(database)
        if table is None and (found := list(_recognised(database, names, url))):
            return _as_presets(found, shown, deadline)
        guesses, others = _chosen(database, names, table)
        text = sketch(database, guesses)
    finally:
        database.close()
    told = [f"Proposed for table {guesses.table.shown}; every guess has its reason beside it."]
    if others:
        told.append(f"Other tables that look like a queue: {', '.join(others)}; choose with --table.")
    backend, problem = _opened(url, text, deadline)
    return Look(_header(guesses.table.shown, shown) + text, (*told, *problem), backend)


# --- presets ------------------------------------------------------------------------------------------------


def _recognised(
    database: AnyDatabase, names: Sequence[tuple[str | None, str]], url: str
) -> list[Options]:
    """The presets whose tables are here, as the options that attach to them."""
    found = []
    for name in preset_names():
        mapping = preset(name)
        schemas = [schema for schema, table in names if table == mapping.table]
        for schema in schemas:
            given = {"url": url, "preset": name}
            if schema != mapping.schema_ and schema is not None:
                given["schema"] = schema
            options = Options.model_validate(given)
            try:
                Reading(_NAME, attach(database, mapping_of(options), options), SqlTable.own_policy(mapping))
            except BackendFault:
                continue  # a table of the same name that is something else
            found.append(options)
    return found


def _as_presets(found: Sequence[Options], shown: str, deadline: timedelta) -> Look:
    lines = ["# For the config file: a preset fits what is there.", "backends:"]
    for options in found:
        assert options.preset is not None
        name = options.preset.replace("_", "-")
        more = f", schema: {scalar(options.schema_)}" if options.schema_ else ""
        lines.append(f"  {name}: {{plugin: sql_table, preset: {options.preset}, url: {scalar(shown)}{more}}}")
    first = found[0]
    names = ", ".join(str(options.preset) for options in found)
    told = f"Recognised: {names}. --table NAME proposes a mapping of its own instead."
    backend = SqlTable.open(
        str(first.preset).replace("_", "-"), first, PolicyOverride(), read_only=True, deadline=deadline
    )
    return Look("\n".join(lines) + "\n", (told,), backend)


# --- tables -------------------------------------------------------------------------------------------------


def _chosen(
    database: AnyDatabase, names: Sequence[tuple[str | None, str]], wanted: str | None
) -> tuple[Guesses, list[str]]:
    if wanted is not None:
        return _asked_for(database, names, wanted), []
    guessed = [one for schema, name in names if (one := _guessed(database, schema, name))]
    likely = sorted((one for one in guessed if one.score >= _LIKE_A_QUEUE), key=lambda one: -one.score)
    if not likely:
        listed = ", ".join(f"{schema}.{name}" if schema else name for schema, name in names[:20])
        raise UsageFault(
            "no table here looks like a queue", fix=f"Name one with --table. There are: {listed or 'none'}."
        )
    return likely[0], [one.table.shown for one in likely[1:6]]


def _guessed(database: AnyDatabase, schema: str | None, name: str) -> Guesses | None:
    """Nothing for a table only others can read, as one of an extension that a reading connection does not load."""
    try:
        table = look_at(database, schema, name)
        return guess(database, table) if table else None
    except Unreachable:
        raise
    except BackendFault:
        return None


def _asked_for(database: AnyDatabase, names: Sequence[tuple[str | None, str]], wanted: str) -> Guesses:
    schema, dot, rest = wanted.rpartition(".")
    for place in ((None, wanted), *([(schema, rest)] if dot else [])):
        if table := look_at(database, *place):
            return guess(database, table)
    known = [f"{schema}.{name}" if schema else name for schema, name in names]
    close = closest(wanted, known)
    fix = f"Did you mean {close}?" if close else f"There are: {', '.join(known[:20]) or 'none'}."
    raise UsageFault(f"there is no table {wanted!r}", fix=fix)


def _header(table: str, url: str) -> str:
    name = table if table.isprintable() else repr(table)[1:-1]
    return (
        f"# A first mapping for {name}, to be read and corrected. Keep it beside the config and name it there:\n"
        f"#   NAME: {{plugin: sql_table, url: {scalar(url)}, mapping: FILE}}\n"
    )


def _opened(url: str, text: str, deadline: timedelta) -> tuple[SqlTable | None, tuple[str, ...]]:
    """The backend the proposal makes; what keeps it from working is for the reader to correct."""
    try:
        options = Options.model_validate({"url": url, "mapping": yaml.safe_load(text)})
        backend = SqlTable.open(_NAME, options, PolicyOverride(), read_only=True, deadline=deadline)
        backend.known  # noqa: B018  attaches
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return None, (f"It cannot be used as it is: {where}: {first['msg']}.",)
    except BackendFault as fault:
        return None, (f"It cannot be used as it is: {fault.detail}.",)
    return backend, ()
