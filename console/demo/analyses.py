"""Analyses, a table with two pipelines a row, in SQLite or PostgreSQL: a model that comes and goes."""

from __future__ import annotations

from itertools import cycle
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.filling import DAY, HOUR, MINUTE, Row, chosen, fill, palette, postgres_store, sqlite_store
from console.demo.part import Part, Site
from plugins.postgres_analyses.schema import PIPELINES, ddl

DELAYS = (60, 300, 900)
_TABLE = "selfology.answer_analysis"
_COLUMNS = (
    "id, user_answer_id, vectorization_status, vectorization_error, vectorization_completed_at, dp_update_status,"
    " dp_update_error, dp_update_completed_at, retry_count, last_retry_at, processed_at"
)
_STATES = (
    (0.72, "success"), (0.08, "unavailable"), (0.06, "used up"), (0.08, "malformed"), (0.03, "stuck"), (0.03, "new"),
)


def _build(site: Site) -> dict[str, Any]:
    number = site.items // len(PIPELINES)
    rows = palette(site, "analyses", number, lambda chance: _row(site, chance))
    table = _TABLE if site.server else _TABLE.rpartition(".")[2]
    indexes = "".join(f"CREATE INDEX {name}_due ON {table} ({name}_status, id);" for name in PIPELINES)
    path = site.folder / "analyses.db"
    script = ddl(sqlite=site.server is None) + indexes
    with postgres_store(site.server, script) if site.server else sqlite_store(path, script) as store:
        numbered = ((n + 1, *row) for n, row in zip(range(number), cycle(rows), strict=False))
        marks = ", ".join("?" * 11)
        fill(store, f"INSERT INTO {table} ({_COLUMNS}) VALUES ({marks})",  # noqa: S608  names are ours
             numbered, lambda done: site.progress("analyses", done, number))
    return {
        "plugin": "postgres_analyses", "url": site.server or site.url(path),
        "handler": "console.demo.handlers:analyses",
        "policy": {"max_attempts": 4, "delays": [site.delay(seconds) for seconds in DELAYS]},
    }


def _row(site: Site, chance: Random) -> Row:
    """All but the id; one pipeline may have failed, the other has what is usual."""
    state, some = chosen(chance, _STATES), chance.random()
    ages = {"success": DAY * some, "new": 4 * MINUTE * some, "stuck": 20 * MINUTE + HOUR * some}
    born = ages.get(state, 5 * HOUR * some)
    retries = {"unavailable": int(3 * some), "used up": 3, "stuck": 3}.get(state, 0)
    retried = site.time(-born * 0.8 if retries == 3 else -min(born, 80 * some)) if retries else None
    first = _pipeline(site, state, born, chance)
    second = _pipeline(site, "success" if state != "new" else state, born, chance)
    if chance.random() < 0.5:
        first, second = second, first
    return (chance.randrange(1_000, 9_999), *first, *second, retries, retried, site.time(-born))


def _pipeline(site: Site, state: str, born: float, chance: Random) -> Row:
    """Status, error, completed at."""
    match state:
        case "success":
            return "success", None, site.time(3 - born)
        case "malformed":
            return "failed", incidents.not_json(chance), None
        case "unavailable" | "used up":
            return "failed", incidents.model_unavailable(chance), None
        case _:
            return "pending", None, None


PARTS = (Part("analyses", 0.09, _build, most=20_000),)
