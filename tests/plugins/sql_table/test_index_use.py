"""How a mapped table is counted: by the index of its unfinished jobs, or by a sample where no index helps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from console.core.item import Condition
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.sql import counting
from plugins.sql_table import SqlTable
from plugins.sql_table.backend import Options
from tests.plugins.sql_table.world import postgres_queue

SCHEMAS = Path(__file__).parent / "schemas"


def test_counting_solid_queue_reads_its_unfinished_jobs_by_the_index(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((SCHEMAS / "solid_queue_sqlite.sql").read_text())
        options = Options.model_validate({"url": f"sqlite:///{path}", "preset": "solid_queue_sqlite"})
        backend = SqlTable.open("queue", options, PolicyOverride(), read_only=False, deadline=timedelta(seconds=5))
        statements: list[tuple[str, object]] = []
        backend.counts(Filter(), backend.now())
        sa.event.listen(
            backend.database._reader, "before_cursor_execute", lambda *given: statements.append((given[2], given[3]))
        )
        backend.counts(Filter(), backend.now())
        backend.close()
        ((sql, values),) = statements
        plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]  # type: ignore[arg-type]
    assert [step for step in plan if "SCAN job" in step] == []
    assert [step for step in plan if "SEARCH job USING" in step and "finished" in step]


def test_a_large_mapped_table_without_an_index_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "LARGE", 10_000)
    monkeypatch.setattr(counting, "_SAMPLE", 5_000)
    with postgres_queue((SCHEMAS / "delayed_job.sql").read_text(), {"preset": "delayed_job"}) as queue:
        queue.run(
            "INSERT INTO delayed_jobs (handler, failed_at) SELECT 'h', CASE WHEN n % 4 = 0 THEN now() END"
            " FROM generate_series(1, 20000) AS n", [],
        )
        queue.run("ANALYZE delayed_jobs", [])
        backend, statements = queue.open(), list[str]()
        sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
        terminal = backend.counts(Filter(), backend.now())[Condition.TERMINAL]
        backend.close()
    assert terminal.estimated
    assert 3_000 < terminal.value < 7_500
    assert all("TABLESAMPLE" in sql for sql in statements if "count(*)" in sql and "delayed_jobs" in sql)
    assert any("TABLESAMPLE" in sql for sql in statements)
