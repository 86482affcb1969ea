"""Exactly the confirmed plan: a share of the rows is changed between preview and apply."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tests.faults.world import KEEP, NOON, confirm, matching, outcomes, planned, world_in

_NOT_A_CHANGE = frozenset({"last_error", "entity_id"})
"""What the plan neither guards nor assigns."""


@dataclass
class Mutated:
    """One trial: both must be 0."""

    trials: int = 0
    outside: int = 0
    """Rows touched that were not in the plan, or were changed since."""
    unreported: int = 0
    """Changed rows that were not reported as conflicted, or untouched ones that were not handed back."""
    changed: int = 0

    @property
    def ok(self) -> bool:
        return not (self.outside or self.unreported)


def _mutate(connection: sqlite3.Connection, ids: list[str], chance: random.Random) -> None:
    moment = NOON - timedelta(minutes=chance.randrange(1, 50), microseconds=chance.randrange(10**6))
    for id in ids:
        kind = chance.randrange(7)
        if kind == 0:
            connection.execute("UPDATE async_tasks SET status = 'RUNNING', attempts = attempts + 1 WHERE task_id = ?", (id,))
        elif kind == 1:
            connection.execute("UPDATE async_tasks SET status = 'DONE', last_error = NULL WHERE task_id = ?", (id,))
        elif kind == 2:
            connection.execute("UPDATE async_tasks SET attempts = attempts + 1 WHERE task_id = ?", (id,))
        elif kind == 3:
            connection.execute("UPDATE async_tasks SET updated_at = ? WHERE task_id = ?", (moment.isoformat(), id))
        elif kind == 4:
            connection.execute("UPDATE async_tasks SET next_run_at = ? WHERE task_id = ?", (moment.isoformat(), id))
        elif kind == 5:
            connection.execute("DELETE FROM async_tasks WHERE task_id = ?", (id,))
        else:  # another task under another id in its place
            connection.execute("UPDATE async_tasks SET task_id = task_id || '-moved' WHERE task_id = ?", (id,))


def trial(folder: Path, items: int, share: float, seed: int, total: Mutated) -> None:
    chance = random.Random(seed)
    with world_in(folder) as world:
        ids = world.queue.fill(items)
        console = world.console()
        plan = console.propose(matching("condition:terminal", limit=items * 2 // 3), KEEP)
        wanted = [row.key.split("/")[1] for row in planned(console, plan)]
        mutated = chance.sample(ids, max(1, round(len(ids) * share)))
        with closing(sqlite3.connect(world.queue.path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            _mutate(connection, mutated, chance)
            connection.execute("COMMIT")
        world.queue.forget()
        override = console.carry_out(plan.id, confirm(plan))
        told = {key.split("/")[1]: what for key, (what, _) in outcomes(console, override).items()}
        allowed = set(wanted) - set(mutated)
        total.trials += 1
        total.changed += len(mutated)
        total.outside += len(world.queue.touched() - allowed)
        total.unreported += sum(told[id] != "conflicted" for id in wanted if id in set(mutated))
        total.unreported += sum(told[id] != "changed" for id in allowed)
        total.unreported += len(allowed ^ set(world.queue.handed_back()))
