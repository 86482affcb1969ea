"""The trail's tables: three that are append-only, which triggers enforce, and the working tables.

The triggers prevent accidents. A user who may alter the database can drop them; the chain and the anchors show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

VERSION = 6
SCHEMA = "retriage_trail"
"""The PostgreSQL schema of the tables, separate from a team's own."""
SELECT_VERSION = "SELECT max(version) FROM trail_schema"

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
record_by_kind = sa.Index("record_by_kind", record.c.kind, record.c.seq)

# No index on key: recording an override of a million items would take three times as long, only to save a scan
# of this table when somebody opens the history of one item.
item_outcome = _table(
    "item_outcome",
    _number("seq"), _number("ordinal"), _text("key"), _text("outcome"), _text("detail"),
    key=("seq", "ordinal"),
)

item_result = _table(
    "item_result",
    _number("seq"), _number("ordinal"), _text("key"), _text("result"), _text("cause"),
    key=("seq", "ordinal"),
)

plan = _table(
    "plan",
    _text("nonce"), _text("id"), _number("stage"), _text("created"), _text("expires", nullable=True),
    _text("body", nullable=True), _text("hash", nullable=True), _number("seq", nullable=True),
    key=("nonce",),
)
plan_by_id = sa.Index("plan_by_id", plan.c.id, unique=True)
plan_by_seq = sa.Index("plan_by_seq", plan.c.seq)

plan_block = _table(
    "plan_block",
    _text("nonce"), _number("first"), _number("items"), sa.Column("body", sa.LargeBinary, nullable=False),
    key=("nonce", "first"), clustered=False,
)

override_state = _table(
    "override_state",
    _text("override_id"), _number("seq"), _text("plan_id"), _text("state"), _text("started"),
    _text("confirmed"), _text("counts"), _text("note"), _number("request", nullable=True), _number("leases"),
    _text("undo_of", nullable=True), _number("result", nullable=True),
    key=("override_id",),
)
override_of_plan = sa.Index("override_of_plan", override_state.c.plan_id)
override_undone = sa.Index("override_undone", override_state.c.undo_of)

intent = _table(
    "intent",
    _number("seq"), _text("override_id"), _text("owner"), _number("concluded", nullable=True),
    key=("seq",),
)
intent_of_override = sa.Index("intent_of_override", intent.c.override_id)

lease = _table(
    "lease",
    _text("place"), _text("backend"), _text("override_id"), _text("owner"), _text("heartbeat"),
    key=("place",),
)

_OF_ITEMS = ("item_outcome", "item_result")
"""The tables whose rows belong to a record."""

proposal = _table(
    "proposal",
    _text("plan_id"), _number("seq"), _text("expires"), _text("proposer"), _text("second_person"),
    _text("decision", nullable=True), _number("decided", nullable=True), _text("decided_by", nullable=True),
    key=("plan_id",),
)
proposal.append_constraint(
    sa.CheckConstraint(
        "decision <> 'approved' OR second_person <> 'role' OR decided_by <> proposer", name="somebody_else_approves"
    )
)

_SQLITE_TRIGGERS = (
    """CREATE TRIGGER record_grows BEFORE INSERT ON record
    WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM record)
    BEGIN SELECT RAISE(ABORT, 'a record must follow the last one'); END""",
    *(
        f"""CREATE TRIGGER {table}_grows BEFORE INSERT ON {table}
    WHEN NEW.seq IS NOT (SELECT max(seq) FROM record)
    BEGIN SELECT RAISE(ABORT, '{table} belongs to the last record'); END"""  # noqa: S608  constants
        for table in _OF_ITEMS
    ),
    *(
        f"""CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table}
    BEGIN SELECT RAISE(ABORT, 'the trail is append-only'); END"""
        for table in ("record", *_OF_ITEMS) for event in ("UPDATE", "DELETE")
    ),
    """CREATE TRIGGER proposal_no_delete BEFORE DELETE ON proposal
    BEGIN SELECT RAISE(ABORT, 'the trail is append-only'); END""",
    """CREATE TRIGGER proposal_decided_once BEFORE UPDATE ON proposal
    WHEN OLD.decided IS NOT NULL OR NEW.decided IS NULL OR NEW.decision IS NULL
        OR (NEW.plan_id, NEW.seq, NEW.expires, NEW.proposer, NEW.second_person)
        IS NOT (OLD.plan_id, OLD.seq, OLD.expires, OLD.proposer, OLD.second_person)
    BEGIN SELECT RAISE(ABORT, 'a proposal is decided once and never changed'); END""",
)

# The functions have a search path of their own: the role that inserts could have tables of the same names.
_POSTGRES_TRIGGERS = (
    """CREATE FUNCTION only_grows() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, retriage_trail, pg_temp AS
    $$ BEGIN RAISE EXCEPTION 'the trail is append-only'; END $$""",
    """CREATE FUNCTION record_follows() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, retriage_trail, pg_temp AS
    $$ DECLARE
        -- jsonb cannot hold every escaped character. No key or value that is compared here contains a #, so that
        -- nothing else becomes one of them.
        plain text := replace(NEW.body, '\\\\', '#');
        whole jsonb;
        facts jsonb;
    BEGIN
        IF NEW.seq IS DISTINCT FROM (SELECT coalesce(max(seq), 0) + 1 FROM record) THEN
            RAISE EXCEPTION 'a record must follow the last one';
        END IF;
        IF plain ~ '\\\\u00([2-6]|7[0-9a-e])' THEN
            RAISE EXCEPTION 'a record may not disguise its keys';
        END IF;
        whole := regexp_replace(plain, '\\\\u[0-9a-f]{4}', '#', 'g')::jsonb;
        facts := whole -> 'server';
        IF facts ->> 'session_user' IS DISTINCT FROM
                regexp_replace(replace(session_user, '\\', '#'), '[^ -~]', '#', 'g')
            OR facts ->> 'address' IS DISTINCT FROM coalesce(host(inet_client_addr()), '')
            OR (abs(extract(epoch FROM clock_timestamp() - (facts ->> 'at')::timestamptz)) <= 5) IS NOT TRUE THEN
            RAISE EXCEPTION 'the record does not say who writes it, from where and when';
        END IF;
        IF NEW.kind = 'confirmed' AND EXISTS (
            SELECT 1 FROM proposal AS p WHERE p.plan_id = whole ->> 'plan_id' AND p.second_person = 'role'
            AND (p.decision IS DISTINCT FROM 'approved' OR p.decided IS DISTINCT FROM NEW.seq)
        ) THEN
            RAISE EXCEPTION 'somebody else must approve this plan';
        END IF;
        RETURN NEW;
    END $$""",
    """CREATE FUNCTION items_follow() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, retriage_trail, pg_temp AS
    $$ BEGIN
        IF EXISTS (SELECT 1 FROM added WHERE seq IS DISTINCT FROM (SELECT max(seq) FROM record)) THEN
            RAISE EXCEPTION 'rows of an item belong to the last record';
        END IF;
        RETURN NULL;
    END $$""",
    """CREATE FUNCTION proposal_changes() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, retriage_trail, pg_temp AS
    $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            IF NEW.proposer <> session_user OR NEW.decided IS NOT NULL OR NEW.decision IS NOT NULL THEN
                RAISE EXCEPTION 'a proposal is submitted in one''s own name and is open';
            END IF;
        ELSIF OLD.decided IS NOT NULL OR NEW.decided IS NULL OR NEW.decision IS NULL
            OR NEW.decided_by IS DISTINCT FROM session_user::text
            OR (NEW.plan_id, NEW.seq, NEW.expires, NEW.proposer, NEW.second_person)
            IS DISTINCT FROM (OLD.plan_id, OLD.seq, OLD.expires, OLD.proposer, OLD.second_person) THEN
            RAISE EXCEPTION 'a proposal is decided once, in one''s own name, and never changed';
        END IF;
        RETURN NEW;
    END $$""",
    """CREATE TRIGGER proposal_decided_once BEFORE INSERT OR UPDATE ON proposal
    FOR EACH ROW EXECUTE FUNCTION proposal_changes()""",
    """CREATE TRIGGER proposal_stays BEFORE DELETE OR TRUNCATE ON proposal
    FOR EACH STATEMENT EXECUTE FUNCTION only_grows()""",
    """CREATE TRIGGER record_grows BEFORE INSERT ON record
    FOR EACH ROW EXECUTE FUNCTION record_follows()""",
    *(
        f"""CREATE TRIGGER {table}_grows AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION items_follow()"""
        for table in _OF_ITEMS
    ),
    *(
        f"""CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION only_grows()"""
        for table in ("record", *_OF_ITEMS)
    ),
)


def ddl(dialect: Dialect) -> Iterator[str]:
    """The statements that create a trail in an empty database."""
    for table in metadata.sorted_tables:
        yield str(CreateTable(table).compile(dialect=dialect))
    indexes = (record_by_kind, plan_by_id, plan_by_seq, override_of_plan, override_undone, intent_of_override)
    for index in indexes:
        yield str(CreateIndex(index).compile(dialect=dialect))
    yield from _SQLITE_TRIGGERS if dialect.name == "sqlite" else _POSTGRES_TRIGGERS
    yield f"INSERT INTO trail_schema (version) VALUES ({VERSION})"  # noqa: S608  a constant
