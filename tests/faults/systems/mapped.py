"""Tables of other systems, read and written by a mapping: River's by the shared guard, Solid Queue's by statements.

Their workers are not ours: a few statements do what theirs do. Triggers are the oracle.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg

from console.core.policy import PolicyOverride
from console.core.ports import Clock, Stop
from plugins.sql_table import SqlTable
from plugins.sql_table.mapping import Options
from tests.faults.systems import RESET
from tests.faults.systems.databases import DatabaseSystem
from tests.plugins.sql_table.systems import SYSTEMS

NOTED = """
CREATE TABLE notes (id text);
CREATE TABLE oracle (n bigserial, id text, kind text);
"""


class Mapped(DatabaseSystem):
    """What is the same of every mapped queue."""

    name = "mapped"
    preset, table = "", ""
    fill = ""
    """Makes this many failed jobs, and the triggers that note what happens to them."""
    claim, finish, fail = "", "", ""
    """What a worker does: take one job, and say how it went."""
    changes: tuple[str, ...] = ()
    taken_back = ""
    """What ends a job that waits, without an execution."""
    naive_requeue = ""
    """What a script does to what has failed, a chunk at a time; the ids of it."""

    @property
    def ddl(self) -> str:  # type: ignore[override]
        return SYSTEMS[self.preset].ddl

    def create(self, items: int) -> list[str]:
        self.make()
        self.script(NOTED + self.fill.replace("{items}", str(items)))
        return sorted(self.present())

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> SqlTable:
        options = Options(url=self.url, preset=self.preset)
        return SqlTable.open(self.name, options, PolicyOverride(), read_only=False, deadline=deadline)

    def work(self, handler: Any, clock: Clock, stop: Stop) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not stop.requested:
                with connection.transaction():
                    taken = connection.execute(self.claim).fetchone()
                if taken is None:
                    clock.sleep(0.02)
                    continue
                try:
                    handler("job", {})
                    ended = self.finish
                except RuntimeError:
                    ended = self.fail
                with connection.transaction():
                    connection.execute(ended, {"id": taken[0]})

    def present(self) -> set[str]:
        return {str(id) for (id,) in self.run(f"SELECT id FROM {self.table}")}

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE kind = 'back' GROUP BY 1")))

    def taken(self) -> bool:
        return bool(self.run("SELECT 1 FROM oracle WHERE kind = 'taken' LIMIT 1"))

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection, connection.transaction():
            for id in ids:
                for statement in chance.choice(self.changes).split(";"):
                    connection.execute(statement, {"id": id})  # type: ignore[arg-type]

    def delete(self, ids: list[str]) -> None:
        self.for_each(f"DELETE FROM {self.table} WHERE id = %(id)s", ids)

    def take_back(self, ids: list[str]) -> None:
        self.for_each(self.taken_back, ids)

    def naive(self, chunk: int = 100) -> bool:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute(self.naive_requeue, {"chunk": chunk}).fetchall()
        with psycopg.connect(self.url) as connection:
            connection.cursor().executemany("INSERT INTO notes VALUES (%s::text)", rows)
        return bool(rows)


class River(Mapped):
    preset, table = "river", "river_job"
    fill = """
    INSERT INTO river_job (state, attempt, max_attempts, args, kind, finalized_at)
        SELECT 'discarded', 25, 25, '{}', 'mail', now() - interval '1 hour' + n * interval '1 microsecond' FROM generate_series(1, {items}) n;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO oracle (id, kind) VALUES (coalesce(old.id, new.id),
            CASE WHEN tg_op = 'UPDATE' AND old.state = 'discarded' AND new.state = 'available' THEN 'back'
                 WHEN tg_op = 'UPDATE' AND new.state = 'running' THEN 'taken' ELSE tg_op END);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON river_job FOR EACH ROW EXECUTE FUNCTION note();
    """
    claim = """
    UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now() WHERE id = (
        SELECT id FROM river_job WHERE state = 'available' AND scheduled_at <= now() ORDER BY scheduled_at, id LIMIT 1 FOR UPDATE SKIP LOCKED
    ) RETURNING id
    """
    finish = "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = %(id)s"
    fail = "UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = %(id)s"
    changes = (
        "UPDATE river_job SET state = 'completed' WHERE id = %(id)s",
        "UPDATE river_job SET state = 'running', finalized_at = NULL WHERE id = %(id)s",
        "UPDATE river_job SET attempt = attempt - 1 WHERE id = %(id)s",
        "UPDATE river_job SET max_attempts = max_attempts + 1 WHERE id = %(id)s",
        "UPDATE river_job SET finalized_at = finalized_at + interval '1 second' WHERE id = %(id)s",
        "DELETE FROM river_job WHERE id = %(id)s",
        "UPDATE river_job SET id = id + 10000000 WHERE id = %(id)s",
    )
    taken_back = "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = %(id)s"
    naive_requeue = """
    UPDATE river_job SET state = 'available', finalized_at = NULL, scheduled_at = now() WHERE id IN (
        SELECT id FROM river_job WHERE state = 'discarded' ORDER BY id LIMIT %(chunk)s) RETURNING id
    """


class SolidQueue(Mapped):
    preset, table, operation = "solid_queue", "solid_queue_jobs", RESET
    fill = """
    WITH made AS (
        INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, created_at, updated_at)
        SELECT 'q', 'Mail', '{"executions": 3}', now() - interval '1 hour', now() - interval '1 hour' + n * interval '1 microsecond'
        FROM generate_series(1, {items}) n RETURNING id)
    INSERT INTO solid_queue_failed_executions (job_id, created_at) SELECT id, now() - interval '1 hour' FROM made;
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO oracle (id, kind) VALUES (coalesce(old.id, new.id), tg_op); RETURN NULL; END $$;
    CREATE FUNCTION note_execution() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO oracle (id, kind) VALUES (coalesce(old.job_id, new.job_id),
            CASE WHEN tg_op = 'INSERT' THEN CASE tg_table_name WHEN 'solid_queue_ready_executions' THEN 'back'
                WHEN 'solid_queue_claimed_executions' THEN 'taken' ELSE tg_op END ELSE tg_op END);
        RETURN NULL;
    END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON solid_queue_jobs FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON solid_queue_ready_executions FOR EACH ROW EXECUTE FUNCTION note_execution();
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON solid_queue_claimed_executions FOR EACH ROW EXECUTE FUNCTION note_execution();
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON solid_queue_failed_executions FOR EACH ROW EXECUTE FUNCTION note_execution();
    """
    claim = """
    WITH taken AS (
        DELETE FROM solid_queue_ready_executions WHERE id = (
            SELECT id FROM solid_queue_ready_executions ORDER BY priority, job_id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING job_id)
    INSERT INTO solid_queue_claimed_executions (job_id, created_at) SELECT job_id, now() FROM taken RETURNING job_id
    """
    finish = """
    WITH done AS (DELETE FROM solid_queue_claimed_executions WHERE job_id = %(id)s)
    UPDATE solid_queue_jobs SET finished_at = now(), updated_at = now() WHERE id = %(id)s
    """
    fail = """
    WITH done AS (DELETE FROM solid_queue_claimed_executions WHERE job_id = %(id)s)
    INSERT INTO solid_queue_failed_executions (job_id, created_at) VALUES (%(id)s, now())
    """
    changes = (
        "DELETE FROM solid_queue_failed_executions WHERE job_id = %(id)s; UPDATE solid_queue_jobs SET finished_at = now() WHERE id = %(id)s",
        "DELETE FROM solid_queue_failed_executions WHERE job_id = %(id)s;"
        " INSERT INTO solid_queue_claimed_executions (job_id, created_at) VALUES (%(id)s, now())",
        "DELETE FROM solid_queue_failed_executions WHERE job_id = %(id)s;"
        " INSERT INTO solid_queue_failed_executions (job_id, created_at) VALUES (%(id)s, now())",
        "UPDATE solid_queue_jobs SET finished_at = now() WHERE id = %(id)s",
        "DELETE FROM solid_queue_jobs WHERE id = %(id)s",
    )
    taken_back = """
    WITH ended AS (DELETE FROM solid_queue_ready_executions WHERE job_id = %(id)s)
    UPDATE solid_queue_jobs SET finished_at = now(), updated_at = now() WHERE id = %(id)s
    """
    naive_requeue = """
    WITH failed AS (
        DELETE FROM solid_queue_failed_executions WHERE id IN (SELECT id FROM solid_queue_failed_executions ORDER BY id LIMIT %(chunk)s)
        RETURNING job_id)
    INSERT INTO solid_queue_ready_executions (job_id, queue_name, created_at) SELECT job_id, 'q', now() FROM failed RETURNING job_id
    """

    def present(self) -> set[str]:
        """Whole: in exactly one state."""
        places = " UNION ALL ".join(
            f"SELECT job_id FROM solid_queue_{place}_executions" for place in ("ready", "scheduled", "claimed", "blocked", "failed")
        )
        return {str(id) for (id,) in self.run(
            f"SELECT id FROM (SELECT id FROM solid_queue_jobs WHERE finished_at IS NOT NULL UNION ALL {places}) states (id)"
            " GROUP BY id HAVING count(*) = 1"
        )}
