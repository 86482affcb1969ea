"""A table under row-level security is never "nothing needs attention"."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from console.core.backend import PageRequest, Severity
from console.core.faults import RowsHidden
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter
from plugins.sql_table import SqlTable
from plugins.sql_table.mapping import Options
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import RealClock
from tests.plugins.sql_table.systems import SYSTEMS

ATTENTION = Filter.parse("")


@contextmanager
def restricted() -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """Graphile Worker with 5 terminal jobs, and the URL of a role that may read its tables but sees no row."""
    with SYSTEMS["graphile_worker"].queue() as queue, psycopg.connect(queue.url, autocommit=True) as owner:
        role = "reader_" + str(sa.make_url(queue.url).database)
        owner.execute(
            f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA graphile_worker TO {role};"
            f" GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA graphile_worker TO {role};"
            " ALTER TABLE graphile_worker._private_jobs ENABLE ROW LEVEL SECURITY;"
            " INSERT INTO graphile_worker._private_tasks (identifier) VALUES ('mail');"
            " INSERT INTO graphile_worker._private_jobs (task_id, attempts) SELECT 1, 25 FROM generate_series(1, 5)"
        )
        try:
            yield sa.make_url(queue.url).set(username=role).render_as_string(hide_password=False), owner
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def opened(url: str) -> SqlTable:
    options = Options.model_validate({"url": url, "preset": "graphile_worker"})
    return SqlTable.open("jobs", options, PolicyOverride(), read_only=True, deadline=timedelta(seconds=PATIENCE))


def test_a_table_that_hides_all_rows_is_a_fault_wherever_it_is_read() -> None:
    with restricted() as (url, owner):
        with closing(opened(url)) as backend:
            now = backend.now()
            for read in (
                lambda: backend.page(PageRequest(ATTENTION, now)), lambda: backend.counts(ATTENTION, now),
                lambda: list(backend.errors(ATTENTION, now, Never())),
            ):
                with pytest.raises(RowsHidden, match=r"sees no row of graphile_worker._private_jobs"):
                    read()
            (error,) = [f for f in backend.check(RealClock()) if f.severity is Severity.ERROR]
            assert error.subject == "row security"
        own = sa.make_url(url).set(username=owner.info.user).render_as_string(hide_password=False)
        with closing(opened(own)) as backend:
            assert len(backend.page(PageRequest(ATTENTION, backend.now())).items) == 5


def test_a_policy_that_shows_some_rows_is_still_an_error_of_check() -> None:
    with restricted() as (url, owner), closing(opened(url)) as backend:
        owner.execute("CREATE POLICY a_few ON graphile_worker._private_jobs USING (id <= 2)")
        assert len(backend.page(PageRequest(ATTENTION, backend.now())).items) == 2
        assert [f.subject for f in backend.check(RealClock()) if f.severity is Severity.ERROR] == ["row security"]
