"""Counts read a table once, and sample a large one that has no index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
import sqlalchemy as sa

from console.core.backend import Count
from console.core.item import Condition
from console.core.query import Filter
from console.sql import counting
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.world import INDEX, NOW, TABLE, Table, postgres_table, sqlite_table

ROWS = 40_000
_COLUMNS = "user_answer_id, vectorization_status, vectorization_error, dp_update_status, retry_count, processed_at"
_VALUES = (
    "n, CASE WHEN n %% 10 = 0 THEN 'failed' ELSE 'success' END, 'invalid json', 'success', 0, '2026-11-10 06:00:00'"
)


@pytest.fixture(params=["postgres", "sqlite"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """A tenth of the analyses is terminal."""
    with postgres_table() if request.param == "postgres" else sqlite_table(tmp_path / "analyses.db") as found:
        if found.is_sqlite:
            series = f"WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {ROWS})"
            found.execute(f"{series} INSERT INTO answer_analysis ({_COLUMNS}) SELECT {_VALUES} FROM s".replace("%%", "%"))
        else:
            found.execute(f"INSERT INTO {TABLE} ({_COLUMNS}) SELECT {_VALUES} FROM generate_series(1, {ROWS}) AS n".replace("%%", "%"))
            found.execute(f"ANALYZE {TABLE}")
        yield found


def scans(table: Table) -> int:
    """How many times the whole table was read. The server writes that down when our connections have ended."""
    ours = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'retriage' AND datname = current_database()"
    end = monotonic() + PATIENCE
    while table.rows(ours) and monotonic() < end:
        sleep(0.05)
    ((found,),) = table.rows("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'answer_analysis'")
    return int(found)


def test_a_small_table_is_counted_exactly(table: Table) -> None:
    backend = table.open()
    assert backend.counts(Filter(), NOW, 10_000)[Condition.TERMINAL] == Count(ROWS // 10)
    assert backend.counts(Filter(), NOW, 1_000)[Condition.TERMINAL] == Count(1_000, exact=False)
    assert not backend.is_costly(NOW)
    backend.close()


def test_a_large_table_without_an_index_is_estimated(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "LARGE", ROWS // 2)
    monkeypatch.setattr(counting, "_PROBE_TIME", 10)  # the whole sample, also on a busy machine
    backend, statements = table.open(), list[str]()
    sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.append(given[2]))
    found = backend.counts(Filter(), NOW)
    counting_ones = [sql for sql in statements if "count(*)" in sql]
    assert counting_ones
    if not backend.is_sqlite:
        assert all("TABLESAMPLE" in sql for sql in counting_ones), "an estimate must not read the whole table"
    terminal = found[Condition.TERMINAL]
    assert terminal.estimated
    assert not terminal.exact
    assert 3_000 < terminal.value < 5_000
    assert str(terminal).startswith("~")
    assert found[Condition.STUCK].value == 0
    none = backend.counts(Filter.parse("error~timeout"), NOW)
    assert none[Condition.TERMINAL] == Count(0, exact=False, estimated=True)
    assert backend.is_costly(NOW)
    assert backend.counts(Filter(), NOW, None)[Condition.TERMINAL] == Count(ROWS // 10), "without a cap it is exact"
    backend.close()


def test_a_table_that_has_lost_its_rows_is_not_taken_for_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rowids go up to a million, and three rows are left."""
    monkeypatch.setattr(counting, "LARGE", 20_000)
    with sqlite_table(tmp_path / "analyses.db") as table:
        for id in (1, 500_000, 1_000_000):
            table.failed(id=id, retry_count=3)
        backend = table.open()
        assert backend.counts(Filter(), NOW)[Condition.TERMINAL] == Count(3)
        backend.close()


def test_an_estimate_does_not_read_a_whole_sqlite_table_to_find_its_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the smallest and the largest key in one SELECT, SQLite reads all keys."""
    monkeypatch.setattr(counting, "LARGE", 2)
    with sqlite_table(tmp_path / "analyses.db") as table:
        for id in range(1, 9):
            table.failed(id=id, retry_count=3)
        backend, statements = table.open(), set[str]()
        sa.event.listen(backend.database._reader, "before_cursor_execute", lambda *given: statements.add(given[2]))
        assert backend.counts(Filter(), NOW)[Condition.TERMINAL].estimated
        backend.close()
        ends = [sql for sql in statements if "min(rowid)" in sql]
        assert ends
        for sql in ends:
            plan = [row[-1] for row in table.rows(f"EXPLAIN QUERY PLAN {sql}")]
            assert not [step for step in plan if "SCAN answer_analysis" in step], plan


def test_a_large_table_that_was_emptied_is_counted(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size is known for ten minutes."""
    monkeypatch.setattr(counting, "LARGE", ROWS // 2)
    backend = table.open()
    assert backend.counts(Filter(), NOW)[Condition.TERMINAL].estimated
    table.execute("DELETE FROM answer_analysis" if table.is_sqlite else f"DELETE FROM {TABLE}")
    assert backend.counts(Filter(), NOW)[Condition.TERMINAL].value == 0
    backend.close()


def test_an_indexed_table_is_never_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "LARGE", 1)
    with postgres_table(INDEX) as table:
        for _ in range(5):
            table.failed(retry_count=3)
        table.execute(f"ANALYZE {TABLE}")
        backend = table.open()
        assert backend.counts(Filter(), NOW)[Condition.TERMINAL] == Count(5)
        backend.close()


def test_one_pass_for_each_pipeline_counts_every_condition() -> None:
    with postgres_table() as table:
        for _ in range(5):
            table.failed(retry_count=3)
        backend = table.open()
        backend.counts(Filter(), NOW)
        backend.close()  # the next read makes a new connection
        before = scans(table)
        backend.counts(Filter(), NOW)
        backend.close()
        assert scans(table) - before == 2, "one for each pipeline"
