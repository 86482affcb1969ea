"""Workflow steps, half of them in tasks that must be woken; a trigger on their transitions is the oracle."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import psycopg

from console.core.policy import PolicyOverride
from plugins.workflow_steps import WorkflowSteps
from plugins.workflow_steps.backend import Options
from plugins.workflow_steps.schema import ddl
from tests.faults.systems import WAKING
from tests.faults.systems.databases import DatabaseSystem

FILL = """
INSERT INTO tasker.named_steps VALUES (gen_random_uuid(), 'charge');
INSERT INTO tasker.workflow_steps
    (workflow_step_uuid, task_uuid, named_step_uuid, attempts, max_attempts, last_attempted_at, created_at, updated_at)
    SELECT ('00000000-0000-4000-9000-' || lpad(n::text, 12, '0'))::uuid, ('00000000-0000-4000-8000-' || lpad((n / 2)::text, 12, '0'))::uuid,
    named_step_uuid, 1, 1, now() - interval '1 hour', now() - interval '1 hour', now() - interval '1 hour' + n * interval '1 microsecond'
    FROM generate_series(0, {items} - 1) n, tasker.named_steps;
INSERT INTO tasker.workflow_step_transitions (workflow_step_uuid, to_state, sort_key, most_recent, created_at, updated_at)
    SELECT workflow_step_uuid, 'error', 1, true, created_at, created_at FROM tasker.workflow_steps;
INSERT INTO tasker.task_transitions (task_uuid, to_state, sort_key, most_recent, created_at, updated_at)
    SELECT DISTINCT task_uuid, CASE WHEN right(task_uuid::text, 1) < '5' THEN 'pending' ELSE 'blocked_by_failures' END, 1, true, now(), now()
    FROM tasker.workflow_steps;
CREATE TABLE notes (id text);
CREATE TABLE oracle (n bigserial, id text, was text, now text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO oracle (id, was, now) VALUES (new.workflow_step_uuid, new.from_state, new.to_state); RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON tasker.workflow_step_transitions FOR EACH ROW EXECUTE FUNCTION note();
CREATE FUNCTION note_step() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO oracle (id, now) VALUES (coalesce(old.workflow_step_uuid, new.workflow_step_uuid), tg_op); RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON tasker.workflow_steps FOR EACH ROW EXECUTE FUNCTION note_step();
ANALYZE;  -- autovacuum is off on the test server; without statistics, reading 1 000 steps takes seconds
"""
MOVE = """
UPDATE tasker.workflow_step_transitions SET most_recent = false WHERE workflow_step_uuid = '{id}';
INSERT INTO tasker.workflow_step_transitions (workflow_step_uuid, from_state, to_state, sort_key, most_recent, created_at, updated_at)
    SELECT '{id}', 'error', '{state}', max(sort_key) + 1, true, now(), now() FROM tasker.workflow_step_transitions WHERE workflow_step_uuid = '{id}';
"""


class Steps(DatabaseSystem):
    name, operation = "steps", WAKING
    ddl = ddl()

    def create(self, items: int) -> list[str]:
        self.make()
        self.script(FILL.format(items=items))
        return sorted(self.present())

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> WorkflowSteps:
        return WorkflowSteps.open(self.name, Options(url=self.url), PolicyOverride(), read_only=False, deadline=deadline)

    def present(self) -> set[str]:
        """Whole: with exactly one most recent transition, and each of them numbered once."""
        return {str(id) for (id,) in self.run(
            "SELECT workflow_step_uuid FROM tasker.workflow_steps JOIN tasker.workflow_step_transitions USING (workflow_step_uuid)"
            " GROUP BY 1 HAVING count(*) FILTER (WHERE most_recent) = 1 AND count(DISTINCT sort_key) = count(*)"
        )}

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE was = 'error' AND now = 'pending' GROUP BY 1")))

    def taken(self) -> bool:
        return bool(self.run("SELECT 1 FROM oracle WHERE now = 'in_progress' LIMIT 1"))

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        """Both steps of a task, where one is meant: they are one write."""
        with psycopg.connect(self.url, autocommit=True) as connection, connection.transaction():
            for id in ids:
                connection.execute(chance.choice((
                    MOVE.format(id=id, state="in_progress"), MOVE.format(id=id, state="resolved_manually"),
                    MOVE.format(id=id, state="error"),
                    f"UPDATE tasker.workflow_steps SET attempts = attempts + 1 WHERE workflow_step_uuid = '{id}'",
                    f"UPDATE tasker.workflow_steps SET updated_at = now() WHERE workflow_step_uuid = '{id}'",
                    f"DELETE FROM tasker.workflow_step_transitions WHERE workflow_step_uuid = '{id}';"
                    f" DELETE FROM tasker.workflow_steps WHERE workflow_step_uuid = '{id}'",
                )))

    def delete(self, ids: list[str]) -> None:
        for table in ("workflow_step_transitions", "workflow_steps"):
            self.for_each(f"DELETE FROM tasker.{table} WHERE workflow_step_uuid = %(id)s", ids)

    def take_back(self, ids: list[str]) -> None:
        self.script("".join(MOVE.format(id=id, state="resolved_manually") for id in ids))

    def naive(self, chunk: int = 100) -> bool:
        rows = self.run(
            "SELECT workflow_step_uuid FROM tasker.workflow_step_transitions WHERE most_recent AND to_state = 'error'"
            f" ORDER BY 1 LIMIT {chunk}"
        )
        for (id,) in rows:
            self.script(f"{MOVE.format(id=id, state='pending')} UPDATE tasker.workflow_steps SET attempts = 0,"
                        f" in_process = false, processed = false WHERE workflow_step_uuid = '{id}'")
        with psycopg.connect(self.url) as connection:
            connection.cursor().executemany("INSERT INTO notes VALUES (%s::text)", rows)
        return bool(rows)
