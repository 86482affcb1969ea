"""Promise: every edit to a proposal, an approval or the recorded rules is found by `trail verify`."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.access import AccessRules, Approval, Compare, Limit, Permission, Right
from console.core.confirm import Who
from console.core.proposals import ProposalState
from console.trail.anchor import AnchorLine, read_anchors
from console.trail.record import link
from tests.depth import examples
from tests.trail.test_verify import Tampered, other
from tests.trail.world import START, YES, sealed, trail_at

RULES = AccessRules(
    (Permission("queue-0", Right.REQUEUE, ("ann",)),), (Limit(("queue-0",), 1_000, timedelta(hours=1)),),
    (Approval(("queue-0",), 5, Compare.LOGIN),),
)
BOB = Who(1001, "bob")
KINDS = ("submitted", "rejected", "withdrawn", "policy", "confirmed")


@pytest.fixture(scope="module")
def trail_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[AnchorLine]]:
    """Proposals of every state, under changing rules, as bytes, and the anchors."""
    folder = tmp_path_factory.mktemp("trail")
    with trail_at(f"sqlite:///{folder}/trail.db", anchor=f"{folder}/anchors") as trail:
        who, origin = YES.who, YES.origin
        for round in range(3):
            rules = AccessRules() if round == 1 else RULES
            made = [trail.submit(sealed(trail), who, origin, f"reason {round}", "OPS-1", START, rules=rules, client="agent 1") for _ in range(4)]
            trail.decline(made[0], ProposalState.REJECTED, BOB, origin, "wrong", START)
            trail.decline(made[1], ProposalState.WITHDRAWN, who, origin, "", START)
            yes = replace(YES, who=BOB, count=6)
            trail.begin(f"op{round}", trail.plan(made[2].plan_id), yes, "owner", START, rules=rules, proposal=trail.proposal(made[2].plan_id), detached=True)
        assert trail.verify(read_anchors(f"{folder}/anchors")).what == ""
    return (folder / "trail.db").read_bytes(), list(read_anchors(folder / "anchors"))


@pytest.fixture
def tampered(trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path) -> Iterator[Tampered]:
    copy = Tampered(trail_file[0], tmp_path / "trail.db")
    yield copy
    copy.database.close()


def a_record(database: sqlite3.Connection, chance: random.Random) -> tuple[object, ...]:
    found: tuple[object, ...] = chance.choice(database.execute(f"SELECT * FROM record WHERE kind IN {KINDS}").fetchall())
    return found


def a_proposal(database: sqlite3.Connection, chance: random.Random) -> tuple[str, dict[str, object]]:
    cursor = database.execute("SELECT * FROM proposal")
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, chance.choice(cursor.fetchall()), strict=True))
    return str(row["plan_id"]), row


def edit_record(database: sqlite3.Connection, chance: random.Random) -> None:
    seq, *values = a_record(database, chance)
    column = chance.randrange(5)
    name = ("kind", "at", "body", "prev", "hash")[column]
    database.execute(f"UPDATE record SET {name} = ? WHERE seq = ?", (other(values[column], chance), seq))


def edit_body_and_hash(database: sqlite3.Connection, chance: random.Random) -> None:
    """A value that means something, with a fitting hash of this record."""
    seq, kind, at, body, prev, _ = a_record(database, chance)
    content = json.loads(str(body))
    name = chance.choice(sorted(content))
    content[name] = chance.choice([None, 1, "eve", {}, [], "login", 999])
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    database.execute("UPDATE record SET body = ?, hash = ? WHERE seq = ?", (text, link(str(prev), int(str(seq)), str(kind), str(at), text), seq))


def delete_record(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute("DELETE FROM record WHERE seq = ?", (a_record(database, chance)[0],))


def swap_bodies(database: sqlite3.Connection, chance: random.Random) -> None:
    first, second = a_record(database, chance), a_record(database, chance)
    for one, another in ((first, second), (second, first)):
        database.execute("UPDATE record SET body = ? WHERE seq = ?", (another[3], one[0]))


def edit_proposal(database: sqlite3.Connection, chance: random.Random) -> None:
    plan_id, row = a_proposal(database, chance)
    name = chance.choice(sorted(row))
    value = chance.choice([None, "eve", "approved", "rejected", "login", "role", "", 7, other(row[name] or 0, chance)])
    database.execute(f"UPDATE OR IGNORE proposal SET {name} = ? WHERE plan_id = ?", (value, plan_id))


def reopen(database: sqlite3.Connection, chance: random.Random) -> None:
    plan_id, _ = a_proposal(database, chance)
    database.execute("UPDATE proposal SET decision = NULL, decided = NULL, decided_by = NULL WHERE plan_id = ?", (plan_id,))


def decide(database: sqlite3.Connection, chance: random.Random) -> None:
    plan_id, _ = a_proposal(database, chance)
    seqs = [seq for (seq,) in database.execute(f"SELECT seq FROM record WHERE kind IN {KINDS}")]
    database.execute("UPDATE proposal SET decision = ?, decided = ? WHERE plan_id = ?", (chance.choice(list(ProposalState)).value, chance.choice(seqs), plan_id))


def delete_proposal(database: sqlite3.Connection, chance: random.Random) -> None:
    database.execute("DELETE FROM proposal WHERE plan_id = ?", (a_proposal(database, chance)[0],))


def add_proposal(database: sqlite3.Connection, chance: random.Random) -> None:
    _, row = a_proposal(database, chance)
    values = {**row, "plan_id": f"p{chance.randrange(10**12):012x}", "seq": chance.choice([row["seq"], 1, 0, -5, 10**6])}
    database.execute(f"INSERT INTO proposal ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values()))


def exchange_plans(database: sqlite3.Connection, chance: random.Random) -> None:
    (first, one), (second, two) = a_proposal(database, chance), a_proposal(database, chance)
    database.execute("UPDATE proposal SET plan_id = 'x' WHERE plan_id = ?", (first,))
    if first != second:
        database.execute("UPDATE proposal SET plan_id = ? WHERE plan_id = ?", (one["plan_id"], second))
        database.execute("UPDATE proposal SET plan_id = ? WHERE plan_id = 'x'", (two["plan_id"],))


EDITS: tuple[Callable[[sqlite3.Connection, random.Random], None], ...] = (
    edit_record, edit_body_and_hash, delete_record, swap_bodies, edit_proposal, reopen, decide, delete_proposal, add_proposal, exchange_plans,
)


def content(database: sqlite3.Connection) -> list[object]:
    return [database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in ("record", "proposal")]


def test_a_thousand_random_edits_are_all_found(trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path) -> None:
    missed, seen = [], 0
    for number in range(examples(1_000)):
        copy = Tampered(trail_file[0], tmp_path / f"{number}.db")
        chance = random.Random(number)
        before, edit = content(copy.database), EDITS[number % len(EDITS)]
        while content(copy.database) == before:
            edit(copy.database, chance)
        seen += 1
        if copy.verify(trail_file[1]).ok:
            missed.append((number, edit.__name__))
        copy.path.unlink()
    assert seen == examples(1_000)
    assert missed == []


def test_an_intact_trail_of_proposals_is_intact(tampered: Tampered, trail_file: tuple[bytes, list[AnchorLine]]) -> None:
    assert tampered.verify(trail_file[1]).what == ""
