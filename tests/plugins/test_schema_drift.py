"""Tables that are not as their system creates them: one clear line, whatever is asked, and never another exception."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from console.core.backend import Attempts, Authority, Buckets, Change, Operation, PageRequest, Requeues, Timeline
from console.core.faults import BackendFault
from console.core.item import ItemKey
from console.core.ports import Never
from console.core.query import NATURAL
from console.testing import ALL
from tests.cli.place import Place
from tests.plugins.postgres_analyses.world import NOW, TABLE, postgres_table
from tests.plugins.workflow_steps.world import postgres_workflow

RESET = Operation(attempts=Attempts.RESET)
STEPS, MOVES = "tasker.workflow_steps", "tasker.workflow_step_transitions"
OTHER = "The schema does not match:"
ANALYSES = {
    f"ALTER TABLE {TABLE} DROP COLUMN retry_count": f"{OTHER} table 'selfology.answer_analysis' has no column retry_count. It has id, ",
    f"DROP TABLE {TABLE}": f"{OTHER} there is no table 'selfology.answer_analysis'. Check the url, ",
    f"CREATE TYPE st AS ENUM ('pending', 'success', 'failed', 'skipped'); ALTER TABLE {TABLE} ALTER COLUMN vectorization_status DROP DEFAULT,"
    " ALTER COLUMN vectorization_status TYPE st USING vectorization_status::text::st":
        f"{OTHER} a column has another type than expected (operator does not exist: st ",
    f"ALTER TABLE {TABLE} ALTER COLUMN vectorization_error TYPE jsonb USING to_jsonb(vectorization_error)":
        f"{OTHER} a column has another type than expected (function octet_length(jsonb) does not exist)."
        " Attach the table as its own system creates it.",
    f"ALTER TABLE {TABLE} RENAME TO kept; CREATE VIEW {TABLE} AS SELECT * FROM selfology.kept":
        f"{OTHER} it is not a plain table (column vectorization.ctid does not exist). Attach the table itself, not a view of it.",
}
WORKFLOW = {
    f"ALTER TABLE {MOVES} DROP COLUMN sort_key": f"{OTHER} table 'tasker.workflow_step_transitions' has no column sort_key. It has ",
    f"ALTER TABLE {STEPS} ALTER COLUMN workflow_step_uuid TYPE text": f"{OTHER} a column has another type than expected (operator does not exist: ",
    f"ALTER TABLE {STEPS} ALTER COLUMN updated_at TYPE timestamptz":
        f"{OTHER} column updated_at of 'tasker.workflow_steps' is a timestamp with time zone."
        " The system itself creates TIMESTAMP columns. Attach tables with these columns.",
}
ODD = (
    f"ALTER TABLE {TABLE} ALTER COLUMN id DROP DEFAULT, ALTER COLUMN id TYPE text USING id::text",
    f"ALTER TABLE {TABLE} ALTER COLUMN retry_count DROP DEFAULT, ALTER COLUMN retry_count TYPE text USING retry_count::text",
    f"ALTER TABLE {TABLE} ALTER COLUMN processed_at DROP DEFAULT, ALTER COLUMN processed_at TYPE text USING processed_at::text",
    f"ALTER TABLE {TABLE} RENAME TO kept; CREATE MATERIALIZED VIEW {TABLE} AS SELECT * FROM selfology.kept",
)
"""What may be read in part."""


def drift(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql)


def ask_everything(backend: Requeues) -> list[BackendFault]:
    """Every way of asking; whatever else than a fault is raised fails the test."""
    faults: list[BackendFault] = []

    def compare_and_set() -> None:
        for batch in backend.drafts(ALL, NATURAL, RESET, NOW, Never()):
            for draft in batch:
                if draft.skipped is None:
                    change = Change(draft.unit, (ItemKey.parse(draft.key),), draft.before, ())
                    change = change._replace(after=backend.after(change, RESET, NOW, NOW))
                    backend.compare_and_set([change], RESET, Authority("ops", "because", None, "o1"))
                    backend.images([change])

    for ask in (
        lambda: backend.page(PageRequest(ALL, NOW, limit=5)),
        lambda: backend.counts(ALL, NOW),
        lambda: list(backend.errors(ALL, NOW, Never())),
        lambda: backend.histogram(Timeline.UPDATED, ALL, NOW, Buckets(NOW, timedelta(minutes=5), 3)),
        compare_and_set,
    ):
        try:
            ask()
        except BackendFault as fault:
            faults.append(fault)
    backend.close()
    return faults


@pytest.mark.parametrize("sql", ANALYSES)
def test_analyses_of_another_shape_are_reported_by_check_and_by_every_read(
    sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres_table() as table:
        table.failed(retry_count=3, last_retry_at=NOW - timedelta(hours=1))
        drift(table.url, sql)
        faults = ask_everything(table.open())
        assert any(ANALYSES[sql] in str(fault) for fault in faults), faults
        place = Place(tmp_path, capsys, {"a": f'  analyses: {{plugin: postgres_analyses, url: "{table.url}"}}\n'})
        place.console = f'  trail: "sqlite:///{tmp_path}/trail.db"\n'
        done = place.run("check", "--format", "jsonl")
    assert done.code in (1, 4), done
    findings = [json.loads(line) for line in done.out.splitlines()]
    lines = [f"{finding['message']}. {finding['fix']}" for finding in findings if finding["severity"] == "error"]
    assert any(ANALYSES[sql] in line for line in lines), lines


@pytest.mark.parametrize("sql", ODD)
def test_analyses_that_are_odd_raise_nothing_but_faults(sql: str) -> None:
    with postgres_table() as table:
        table.failed(retry_count=3, last_retry_at=NOW - timedelta(hours=1))
        drift(table.url, sql)
        assert len(ask_everything(table.open())) < 6


@pytest.mark.parametrize("sql", WORKFLOW)
def test_steps_of_another_shape_are_reported_by_every_read(sql: str) -> None:
    with postgres_workflow() as workflow:
        workflow.step()
        drift(workflow.url, sql)
        faults = ask_everything(workflow.open())
        assert len(faults) == 5
        assert all(WORKFLOW[sql] in str(fault) for fault in faults), faults


TRIGGER = "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {does} END $$; CREATE TRIGGER no BEFORE UPDATE ON {on} FOR EACH ROW EXECUTE FUNCTION no()"


@pytest.mark.parametrize(("does", "outcome"), [
    ("RETURN NULL;", "changed: the database left it unchanged"),
    ("RAISE EXCEPTION 'not today';", "rejected: not today"),
])
def test_a_trigger_that_will_not_have_it_is_that_items_outcome(does: str, outcome: str) -> None:
    with postgres_table() as table:
        table.failed(retry_count=3, last_retry_at=NOW - timedelta(hours=1))
        drift(table.url, TRIGGER.format(does=does, on=TABLE))
        backend = table.open()
        (draft,) = (d for batch in backend.drafts(ALL, NATURAL, RESET, NOW, Never()) for d in batch if d.skipped is None)
        change = Change(draft.unit, (ItemKey.parse(draft.key),), draft.before, ())
        change = change._replace(after=backend.after(change, RESET, NOW, NOW))
        (found,) = backend.compare_and_set([change], RESET, Authority("ops", "because", None, "o1"))
        assert f"{found.kind}: {found.detail}" == outcome
        assert list(backend.images([change])) == [change.before]
        backend.close()
