"""Analyses, a table with two pipelines per row, in SQLite or PostgreSQL: a model that is often unavailable."""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.seeding import DAY, HOUR, MINUTE, Row, fill, open_store, pick, sample_rows
from console.demo.system import BuildContext, DemoSystem
from plugins.postgres_analyses.loop_order import PIPELINES
from plugins.postgres_analyses.schema import ddl

DELAYS = (60, 300, 900)
_TABLE = "selfology.answer_analysis"
_COLUMNS = (
    "id, user_answer_id, vectorization_status, vectorization_error, vectorization_completed_at, dp_update_status,"
    " dp_update_error, dp_update_completed_at, retry_count, last_retry_at, processed_at"
)
_STATES = (
    (0.72, "success"), (0.08, "unavailable"), (0.06, "used up"), (0.08, "malformed"), (0.03, "stuck"), (0.03, "new"),
)


def _build(build: BuildContext) -> dict[str, Any]:
    number = build.items // len(PIPELINES)
    rows = sample_rows(build, "analyses", number, lambda chance: _row(build, chance))
    table = _TABLE if build.server else _TABLE.rpartition(".")[2]
    indexes = "".join(f"CREATE INDEX {name}_due ON {table} ({name}_status, id);" for name in PIPELINES)
    url = build.server or build.new_database("analyses.db")
    script = ddl(sqlite=build.server is None) + indexes
    with open_store(url, script) as store:
        numbered = ((n + 1, *row) for n, row in zip(range(number), cycle(rows), strict=False))
        marks = ", ".join("?" * 11)
        fill(store, f"INSERT INTO {table} ({_COLUMNS}) VALUES ({marks})",  # noqa: S608  names are ours
             numbered, lambda done: build.progress("analyses", done, number))
    return {
        "plugin": "postgres_analyses", "url": url,
        "handler": "console.demo.handlers:analyses",
        "policy": {"max_attempts": 4, "delays": [build.delay(seconds) for seconds in DELAYS]},
    }


def _row(build: BuildContext, chance: Random) -> Row:
    """A row without its id: at most one of its two pipelines has failed."""
    state, some = pick(chance, _STATES), chance.random()
    ages = {"success": DAY * some, "new": 4 * MINUTE * some, "stuck": 20 * MINUTE + HOUR * some}
    born = ages.get(state, 5 * HOUR * some)
    # Ten unrecoverable rows with retries left would starve the others.
    retries = {"unavailable": int(3 * some), "used up": 3, "malformed": 3, "stuck": 3}.get(state, 0)
    retried = build.time(-born * 0.8 if retries == 3 else -min(born, 80 * some)) if retries else None
    first = _pipeline(build, state, born, chance)
    second = _pipeline(build, "success" if state != "new" else state, born, chance)
    if chance.random() < 0.5:
        first, second = second, first
    return (chance.randrange(1_000, 9_999), *first, *second, retries, retried, build.time(-born))


def _pipeline(build: BuildContext, state: str, born: float, chance: Random) -> Row:
    """Status, error, completed at."""
    match state:
        case "success":
            return "success", None, build.time(3 - born)
        case "malformed":
            return "failed", incidents.not_json(chance), None
        case "unavailable" | "used up":
            return "failed", incidents.model_unavailable(chance), None
        case _:
            return "pending", None, None


SYSTEMS = (DemoSystem("analyses", 0.09, _build, most=20_000),)
