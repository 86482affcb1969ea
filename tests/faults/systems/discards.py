"""The same systems with items to discard: most wait for a retry tomorrow, and workers take the others meanwhile.

The oracle counts how often an item was given up, and every time it left that state again. So more than once is wrong.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from console.core.backend import Action, Operation
from plugins.partition_store.schema import KEY, control_ddl
from plugins.workflow_steps.discard import AS_RESOLVED
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.faults.systems import System
from tests.faults.systems.analyses import TABLE, Analyses
from tests.faults.systems.databases import DatabaseSystem
from tests.faults.systems.files import FileTasks
from tests.faults.systems.mapped import NOTED, Mapped, River, SolidQueue
from tests.faults.systems.partitions import NAMED, Partitions
from tests.faults.systems.sqlite_queues import AnalysisQueue, ContractQueue, SqliteSystem
from tests.faults.systems.steps import Steps

DISCARD = Operation(Action.DISCARD)
OPEN = "condition:retrying,failed,terminal"


class Discards(System):
    """What is the same of every system whose items are discarded."""

    operation, wanted = DISCARD, OPEN


class SqliteDiscards(Discards, SqliteSystem):
    given_up, tries = "", 0

    def create(self, items: int) -> list[str]:
        ids = super().create(items)
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        # A quarter is due, so that workers take some of them first.
        self.run(
            f"UPDATE {self.table} SET status = 'PENDING', attempts = ?, {self.due} = CASE WHEN rowid % 4 THEN ? ELSE {self.due} END",
            self.tries, tomorrow,
        )
        self.forget()
        return ids

    def requeued(self) -> Counter[str]:
        given_up = self.run(
            "SELECT id, count(*) FROM oracle WHERE was = 'PENDING' AND now = ?1 OR was = ?1 AND now IS NOT ?1 GROUP BY 1", self.given_up
        )
        return Counter(dict(given_up))

    def taken_first(self) -> set[str]:
        return {id for (id,) in self.run("SELECT DISTINCT id FROM oracle WHERE was = 'PENDING' AND now = 'RUNNING'")}

    def snapshot(self) -> dict[str, Any]:
        return {row[0]: row for row in self.run(f"SELECT {self.key}, * FROM {self.table}")}


class DiscardedAnalyses(SqliteDiscards, AnalysisQueue):
    given_up, tries = "FAILED", 2


class DiscardedTasks(SqliteDiscards, ContractQueue):
    given_up, tries = "CANCELLED", 1


class DiscardedFiles(Discards, FileTasks):
    """None of them is due: a `.done` file that appears was given up, and a `.running` one was taken."""

    def create(self, items: int) -> list[str]:
        ids = super().create(items)
        tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        for id in ids:
            path = self.queue / f"{id}.done"
            fields = {**json.loads(path.read_text()), "status": "PENDING", "attempts": 1, "schedule": {"eta": tomorrow}}
            path.write_text(json.dumps(fields))
            path.rename(path.with_suffix(".task"))
        self.forget()
        return ids

    def requeued(self) -> Counter[str]:
        first = int((self.folder / "seen").read_text())
        ends = (".done", ".running")
        return Counter(name.rpartition(".")[0] for name in self._appeared()[first:] if name.endswith(ends))

    def taken(self) -> bool:
        return False

    def snapshot(self) -> dict[str, Any]:
        return {path.stem: (path.name, path.read_bytes()) for path in self.queue.iterdir() if not path.name.startswith(".")}

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        for id in ids:
            path = self.queue / f"{id}.task"
            fields = json.loads(path.read_text())
            match chance.randrange(5):
                case 0:
                    path.write_text(json.dumps({**fields, "attempts": 2}))
                case 1:
                    path.write_text(json.dumps({**fields, "updated_at": datetime.now(UTC).isoformat()}))
                case 2:
                    path.rename(self.queue / f"{id}.running")
                case 3:
                    path.unlink()
                case _:
                    path.rename(self.queue / f"{id}-moved.task")


class DiscardedPartitions(Discards, Partitions):
    def create(self, items: int) -> list[str]:
        ids = super().create(items)
        self.run(control_ddl(sqlite=True))
        for event in ("INSERT", "UPDATE"):
            was = "NULL" if event == "INSERT" else "OLD.terminal"
            self.run(
                f"CREATE TRIGGER control_{event} AFTER {event} ON retriage_partition_control WHEN NEW.terminal IS NOT {was} BEGIN"
                f" INSERT INTO oracle (id, was, now) VALUES ({NAMED.format('NEW')}, {was}, NEW.terminal); END"
            )
        self.forget()
        return ids

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE 'marked' IN (was, now) GROUP BY 1")))

    def snapshot(self) -> dict[str, Any]:
        same = " AND ".join(f"c.{name} = p.{name}" for name in KEY)
        rows = self.run(
            f"SELECT {NAMED.format('p')}, p.*, c.terminal, c.terminal_by, c.terminal_why FROM partition_state p"
            f" LEFT JOIN retriage_partition_control c ON {same}"
        )
        return {row[0]: row for row in rows}


class DatabaseDiscards(Discards, DatabaseSystem):
    def taken_first(self) -> set[str]:
        return {id for (id,) in self.run("SELECT DISTINCT id FROM oracle WHERE kind = 'taken'")}


class SkippedAnalyses(DatabaseDiscards, Analyses):
    """A quarter of the rows is due, so that the loop takes some of them first."""

    def create(self, items: int) -> list[str]:
        ids = super().create(items)
        self.script(
            f"UPDATE {TABLE} SET retry_count = 0 WHERE id % 4 = 0;"
            " CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            "   INSERT INTO oracle (id, kind) VALUES (coalesce(old.id, new.id) || '/vectorization',"
            "     CASE WHEN tg_op <> 'UPDATE' THEN tg_op"
            "       WHEN (old.vectorization_status = 'skipped') <> (new.vectorization_status = 'skipped') THEN 'back'"
            "       WHEN new.retry_count > old.retry_count THEN 'taken' ELSE tg_op END);"
            "   RETURN NULL;"
            " END $$; DELETE FROM oracle"
        )
        return ids

    def snapshot(self) -> dict[str, Any]:
        return {f"{row[0]}/vectorization": row for row in self.run(f"SELECT * FROM {TABLE}")}


class ResolvedSteps(Discards, Steps):
    """Their undo is compensating, so there is no snapshot to compare with."""

    operation = Operation(Action.DISCARD, flags=frozenset({AS_RESOLVED, WAKE_TASK}))

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE 'resolved_manually' IN (was, now) GROUP BY 1")))


class CancelledJobs(DatabaseDiscards, River):
    """A quarter of the jobs is due, so that workers take some of them first."""

    claim = River.claim.replace("state = 'available' AND", "state IN ('available', 'retryable') AND")
    changes = (
        "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = %(id)s",
        "UPDATE river_job SET state = 'running' WHERE id = %(id)s",
        "UPDATE river_job SET attempt = attempt + 1 WHERE id = %(id)s",
        "UPDATE river_job SET max_attempts = max_attempts + 1 WHERE id = %(id)s",
        "UPDATE river_job SET scheduled_at = scheduled_at + interval '1 second' WHERE id = %(id)s",
        "DELETE FROM river_job WHERE id = %(id)s",
        "UPDATE river_job SET id = id + 10000000 WHERE id = %(id)s",
    )

    def create(self, items: int) -> list[str]:
        ids = super().create(items)
        self.script(
            "UPDATE river_job SET state = 'retryable', attempt = 3, finalized_at = NULL,"
            " scheduled_at = now() + CASE WHEN id % 4 = 0 THEN interval '0' ELSE interval '1 day' END;"
            " CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            "   INSERT INTO oracle (id, kind) VALUES (coalesce(old.id, new.id),"
            "     CASE WHEN tg_op <> 'UPDATE' THEN tg_op WHEN 'cancelled' IN (old.state, new.state) THEN 'back'"
            "       WHEN new.state = 'running' THEN 'taken' ELSE tg_op END);"
            "   RETURN NULL;"
            " END $$; DELETE FROM oracle"
        )
        return ids

    def snapshot(self) -> dict[str, Any]:
        return {str(row[0]): row for row in self.run("SELECT * FROM river_job")}


DELETED = """
CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO oracle (id, kind) VALUES (coalesce(old.id, new.id),
        CASE WHEN tg_op = 'DELETE' AND current_setting('application_name') = 'retriage' THEN 'back'
             WHEN tg_op = 'UPDATE' AND to_jsonb(old)->>'locked_at' IS NULL AND to_jsonb(new)->>'locked_at' IS NOT NULL THEN 'taken'
             ELSE tg_op END);
    RETURN NULL;
END $$;
"""
"""Tells our deletions from those of others by the name of the connection."""


class DatabaseDeletions(DatabaseDiscards):
    """A deleted item is not lost if its deletion was noted."""

    def present(self) -> set[str]:
        return super().present() | set(self.requeued()) | self.taken_first()  # type: ignore[safe-super]


class DeletedFailures(DatabaseDeletions, SolidQueue):
    operation = DISCARD

    def create(self, items: int) -> list[str]:
        self.make()
        self.script(NOTED + self.fill.replace("{items}", str(items)) + DELETED)
        self.forget()
        return sorted(self.present())

    def taken_first(self) -> set[str]:
        return set()


class DeletedJobs(DatabaseDeletions, Mapped):
    """delayed_job, whose workers delete what has succeeded. A quarter of the jobs is due."""

    preset, table = "delayed_job", "delayed_jobs"
    fill = """
    INSERT INTO delayed_jobs (attempts, handler, last_error, run_at, created_at, updated_at)
        SELECT 3, '--- !ruby/struct:Mail', 'timeout', timezone('UTC', now())
            + CASE WHEN n % 4 = 0 THEN interval '-1 minute' ELSE interval '1 day' END,
            timezone('UTC', now()) - interval '1 hour', timezone('UTC', now()) - interval '1 hour' + n * interval '1 microsecond'
        FROM generate_series(1, {items}) n;
    """ + DELETED + "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON delayed_jobs FOR EACH ROW EXECUTE FUNCTION note();"
    claim = """
    UPDATE delayed_jobs SET locked_at = timezone('UTC', now()), locked_by = 'worker' WHERE id = (
        SELECT id FROM delayed_jobs WHERE run_at <= timezone('UTC', now()) AND locked_at IS NULL AND failed_at IS NULL
        ORDER BY priority, run_at LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id
    """
    finish = "DELETE FROM delayed_jobs WHERE id = %(id)s"
    fail = """
    UPDATE delayed_jobs SET locked_at = NULL, locked_by = NULL, attempts = attempts + 1, run_at = run_at + interval '1 day',
        updated_at = timezone('UTC', clock_timestamp()) WHERE id = %(id)s
    """
    changes = (
        "DELETE FROM delayed_jobs WHERE id = %(id)s",
        "UPDATE delayed_jobs SET attempts = attempts + 1 WHERE id = %(id)s",
        "UPDATE delayed_jobs SET locked_at = now(), locked_by = 'worker' WHERE id = %(id)s",
        "UPDATE delayed_jobs SET run_at = run_at + interval '1 second' WHERE id = %(id)s",
        "UPDATE delayed_jobs SET updated_at = updated_at + interval '1 second' WHERE id = %(id)s",
        "UPDATE delayed_jobs SET id = id + 10000000 WHERE id = %(id)s",
    )
