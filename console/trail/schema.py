"""The trail's tables: two that only grow, held by triggers, and the working tables beside them.

The triggers stop accidents. Whoever may alter the database can drop them: that is what the chain and the
anchors are for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

VERSION = 2
SCHEMA = "retriage_trail"
"""Where the tables are in PostgreSQL, apart from a team's own."""

metadata = sa.MetaData()


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _number(name: str, nullable: bool = False) -> sa.Column[int]:
    kind = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    return sa.Column(name, kind, nullable=nullable, autoincrement=False)


def _table(name: str, *columns: sa.Column[Any], key: tuple[str, ...], clustered: bool = True) -> sa.Table:
    return sa.Table(name, metadata, *columns, sa.PrimaryKeyConstraint(*key), sqlite_with_rowid=not clustered)


trail_schema = _table("trail_schema", _number("version"), key=("version",))

record = _table(
    "record",
    _number("seq"), _text("kind"), _text("at"), _text("body"), _text("prev"), _text("hash"),
    key=("seq",), clustered=False,
)

# No index on key: it would make recording an override of a million items three times as slow, to save a
# scan of this table when somebody looks at the history of one item.
item_outcome = _table(
    "item_outcome",
    _number("seq"), _number("ordinal"), _text("key"), _text("outcome"), _text("detail"),
    key=("seq", "ordinal"),
)

plan = _table(
    "plan",
    _text("id"), _number("stage"), _text("created"), _text("expires", nullable=True),
    _text("body", nullable=True), _text("release", nullable=True), _text("hash", nullable=True),
    _text("begun", nullable=True),
    key=("id",),
)

plan_block = _table(
    "plan_block",
    _text("plan"), _number("first"), _number("items"), sa.Column("body", sa.LargeBinary, nullable=False),
    key=("plan", "first"), clustered=False,
)

override_state = _table(
    "override_state",
    _text("op_id"), _number("seq"), _text("plan_id"), _text("state"), _text("started"),
    _text("confirmed"), _text("counts"), _text("note"), _text("request", nullable=True), _number("leases"),
    key=("op_id",),
)

intent = _table(
    "intent",
    _number("seq"), _text("op_id"), _text("owner"), _number("concluded", nullable=True),
    key=("seq",),
)
intent_of_override = sa.Index("intent_of_override", intent.c.op_id)

lease = _table(
    "lease",
    _text("place"), _text("backend"), _text("op_id"), _text("owner"), _text("heartbeat"),
    key=("place",),
)

_SQLITE_TRIGGERS = (
    """CREATE TRIGGER record_grows BEFORE INSERT ON record
    WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM record)
    BEGIN SELECT RAISE(ABORT, 'a record must follow the last one'); END""",
    """CREATE TRIGGER item_outcome_grows BEFORE INSERT ON item_outcome
    WHEN NEW.seq IS NOT (SELECT max(seq) FROM record)
    BEGIN SELECT RAISE(ABORT, 'item outcomes belong to the last record'); END""",
    *(
        f"""CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
    BEGIN SELECT RAISE(ABORT, 'the trail only grows'); END"""
        for table in ("record", "item_outcome") for event in ("UPDATE", "DELETE")
    ),
)

_POSTGRES_TRIGGERS = (
    """CREATE FUNCTION only_grows() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'the trail only grows'; END $$""",
    """CREATE FUNCTION record_follows() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        IF NEW.seq IS DISTINCT FROM (SELECT coalesce(max(seq), 0) + 1 FROM record) THEN
            RAISE EXCEPTION 'a record must follow the last one';
        END IF;
        RETURN NEW;
    END $$""",
    """CREATE FUNCTION outcomes_follow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        IF EXISTS (SELECT 1 FROM added WHERE seq IS DISTINCT FROM (SELECT max(seq) FROM record)) THEN
            RAISE EXCEPTION 'item outcomes belong to the last record';
        END IF;
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER record_grows BEFORE INSERT ON record
    FOR EACH ROW EXECUTE FUNCTION record_follows()""",
    """CREATE TRIGGER item_outcome_grows AFTER INSERT ON item_outcome REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION outcomes_follow()""",
    *(
        f"""CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION only_grows()"""
        for table in ("record", "item_outcome")
    ),
)


def ddl(dialect: Dialect) -> Iterator[str]:
    """Everything that makes an empty database a trail."""
    for table in metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=dialect))
    yield str(CreateIndex(intent_of_override).compile(dialect=dialect))
    yield from _SQLITE_TRIGGERS if dialect.name == "sqlite" else _POSTGRES_TRIGGERS
    yield f"INSERT INTO trail_schema (version) VALUES ({VERSION})"  # noqa: S608  a constant
