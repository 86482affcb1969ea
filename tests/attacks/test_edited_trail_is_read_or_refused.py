"""Promise: whatever somebody wrote into the trail's tables, reading it gives data or a message about the trail, never a
crash, and nothing that one of its tables holds keeps everybody else from working unless `trail verify` says why."""

from __future__ import annotations

import io
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.faults import Fault
from console.core.proposals import ProposalState
from console.trail.anchor import AnchorLine, read_anchors
from console.trail.store import TrailStore
from tests.cli.place import Place, failed
from tests.depth import examples
from tests.trail.test_verify import Tampered
from tests.trail.world import START, YES, carried, sealed, trail_at

TABLES = ("record", "override_state", "intent", "item_outcome", "lease", "plan", "proposal")
VALUES: tuple[object, ...] = (
    None, "", 0, -1, 2**62, 1.5, b"\xff\xfe", "eve", "{}", "[]", "null", "[1]", '{"applied": "x"}', '{"parts": 1}',
    "2030-01-01T00:00:00", "[" * 5_000,
)


@pytest.fixture(scope="module")
def trail_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[AnchorLine]]:
    folder = tmp_path_factory.mktemp("trail")
    with trail_at(f"sqlite:///{folder}/trail.db") as trail:
        carried(trail)
        open_one, rejected = (trail.submit(sealed(trail), YES.who, YES.origin, "r", None, START) for _ in range(2))
        trail.decline(rejected, ProposalState.REJECTED, YES.who, YES.origin, "no", START)
        assert open_one.state is ProposalState.OPEN
        assert trail.verify().what == ""
    return (folder / "trail.db").read_bytes(), []


def reads(trail: TrailStore, plan_id: str) -> Iterator[Callable[[], object]]:
    soon = START + timedelta(hours=1)
    yield lambda: [(o.alive, o.heartbeat, o.started_at < soon, sum(o.counts.values()), o.confirmed["items"]) for o in trail.overrides()]
    yield lambda: trail.override("op1")
    yield trail.unattended
    yield trail.unresolved
    yield lambda: [(one.expires_at < soon, one.changes) for one in trail.proposals()]
    yield trail.newest
    yield lambda: trail.history_of("queue/000001")
    yield lambda: list(trail.outcomes("op1"))
    yield lambda: trail.intents("op1")
    yield lambda: trail.confirmed_hash("op1")
    yield lambda: trail.plan(plan_id).expires_at < soon
    yield lambda: list(trail.rows(plan_id, 0, 5))
    yield lambda: trail.planned(plan_id)
    yield lambda: trail.export(io.StringIO(), "csv", items=True)
    yield trail.verified


def edit(copy: Tampered, chance: random.Random) -> None:
    """One value of one row."""
    table = chance.choice(TABLES)
    columns = [column[1] for column in copy.database.execute(f"PRAGMA table_info({table})")]
    row = chance.choice(copy.database.execute(f"SELECT * FROM {table}").fetchall())
    column = chance.randrange(len(columns))
    value: object = chance.choice(VALUES)
    if isinstance(row[column], str) and row[column].startswith("{") and chance.random() < 0.7:
        content = json.loads(row[column])
        content[chance.choice(sorted(content))] = chance.choice([None, 1, "x", [], {}, [1]])
        value = json.dumps(content)
    where = " AND ".join(f"{name} IS ?" for name in columns)
    with suppress(sqlite3.IntegrityError):  # a number column that takes no text
        copy.database.execute(f"UPDATE OR IGNORE {table} SET {columns[column]} = ? WHERE {where}", (value, *row))


def test_an_edited_trail_is_read_or_refused(trail_file: tuple[bytes, list[AnchorLine]], tmp_path: Path) -> None:
    refused = 0
    for number in range(examples(600)):
        copy = Tampered(trail_file[0], tmp_path / f"{number}.db")
        copy.database.execute("PRAGMA ignore_check_constraints = 1")
        (plan_id,) = copy.database.execute("SELECT plan_id FROM override_state").fetchone()
        edit(copy, random.Random(number))
        copy.database.close()
        with trail_at(f"sqlite:///{copy.path}") as trail:
            for read in reads(trail, plan_id):
                try:
                    read()
                except Fault:
                    refused += 1
        copy.path.unlink()
    assert refused


@pytest.mark.parametrize("line", [
    f"{'9' * 5_000} {'ab' * 32} 2026-11-01T12:00:00.000000Z", f"{'9' * 30} {'ab' * 32} 2026-11-01T12:00:00.000000Z",
    f"1 {'ab' * 32} 2026-13-45T99:99:99.000000Z", f"1 {'ab' * 32} 2026-02-30T12:00:00.000000Z", f"1 {'ab' * 32} 2026-11-01TZ",
], ids=["5000 digits", "30 digits", "month 13", "30 February", "no time"])
def test_a_line_that_is_no_anchor_is_ignored(place: Place, line: str) -> None:
    place.queue("jobs", failed("a"), failed("b"))
    anchors = place.folder / "anchors"
    place.console = f"  anchor: {anchors}\n"
    assert place.run("requeue", "--key", "jobs/a", "--reason", "r", "--confirm", "1").code == 0
    known = read_anchors(anchors)
    with anchors.open("a") as file:
        file.write(f"{line}\n")
    assert read_anchors(anchors) == known
    assert place.run("trail", "verify").code == 0
    assert place.run("requeue", "--key", "jobs/b", "--reason", "r", "--confirm", "1").code == 0
