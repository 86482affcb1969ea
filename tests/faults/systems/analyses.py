"""The table of analyses, with a trigger as its oracle. A retry counter that goes back to 0 was requeued."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import psycopg

from console.core.policy import PolicyOverride
from console.core.ports import Clock
from plugins.postgres_analyses import PostgresAnalyses, engine
from plugins.postgres_analyses.backend import Options
from plugins.postgres_analyses.schema import ddl
from tests.faults.systems import RESET
from tests.faults.systems.databases import DatabaseSystem

TABLE = "selfology.answer_analysis"
ORACLE = f"""
CREATE TABLE notes (id text);
CREATE TABLE oracle (n bigserial, id text, kind text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO oracle (id, kind) VALUES (
        coalesce(old.id, new.id) || '/vectorization',
        CASE WHEN tg_op = 'UPDATE' AND old.retry_count > 0 AND new.retry_count = 0 THEN 'back'
             WHEN tg_op = 'UPDATE' AND new.last_retry_at IS NOT NULL AND old.last_retry_at IS NULL THEN 'taken'
             ELSE tg_op END);
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION note();
"""


class Analyses(DatabaseSystem):
    name, operation = "analyses", RESET
    ddl = ddl()

    def create(self, items: int) -> list[str]:
        self.make()
        self.script(
            f"INSERT INTO {TABLE} (vectorization_status, vectorization_error, dp_update_status, retry_count, last_retry_at, processed_at)"
            " SELECT 'failed', 'timeout', 'success', 3, now() - interval '2 hours' + n * interval '1 microsecond',"
            f" now() - interval '1 day' FROM generate_series(1, {items}) n; {ORACLE}"
        )
        return sorted(self.present())

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> PostgresAnalyses:
        return PostgresAnalyses.open(self.name, Options(url=self.url), PolicyOverride(), read_only=False, deadline=deadline)

    def work(self, handler, clock: Clock, stop) -> None:  # type: ignore[no-untyped-def]
        engine.CYCLE = timedelta(milliseconds=20)  # its loop rests a minute; a test has no minute
        super().work(handler, clock, stop)

    def present(self) -> set[str]:
        return {f"{id}/vectorization" for (id,) in self.run(f"SELECT id FROM {TABLE}")}

    def requeued(self) -> Counter[str]:
        return Counter(dict(self.run("SELECT id, count(*) FROM oracle WHERE kind = 'back' GROUP BY 1")))

    def taken(self) -> bool:
        return bool(self.run("SELECT 1 FROM oracle WHERE kind = 'taken' LIMIT 1"))

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection, connection.transaction():
            for id in ids:
                connection.execute(chance.choice((
                    f"UPDATE {TABLE} SET vectorization_status = 'pending' WHERE id = %s",
                    f"UPDATE {TABLE} SET vectorization_status = 'success', vectorization_error = NULL WHERE id = %s",
                    f"UPDATE {TABLE} SET dp_update_status = 'failed' WHERE id = %s",
                    f"UPDATE {TABLE} SET retry_count = retry_count - 1 WHERE id = %s",
                    f"UPDATE {TABLE} SET last_retry_at = last_retry_at + interval '1 second' WHERE id = %s",
                    f"DELETE FROM {TABLE} WHERE id = %s",
                    f"UPDATE {TABLE} SET id = id + 10000000 WHERE id = %s",
                )), (int(id.split("/")[0]),))

    def delete(self, ids: list[str]) -> None:
        self.for_each(f"DELETE FROM {TABLE} WHERE id || '/vectorization' = %(id)s", ids)

    def take_back(self, ids: list[str]) -> None:
        self.for_each(f"UPDATE {TABLE} SET vectorization_status = 'skipped' WHERE id || '/vectorization' = %(id)s", ids)

    def naive(self, chunk: int = 100) -> bool:
        rows = self.run(
            f"UPDATE {TABLE} SET retry_count = 0, last_retry_at = NULL WHERE id IN (SELECT id FROM {TABLE} WHERE"
            f" vectorization_status = 'failed' AND retry_count > 0 ORDER BY id LIMIT {chunk}) RETURNING id || '/vectorization'"
        )
        with psycopg.connect(self.url) as connection:
            connection.cursor().executemany("INSERT INTO notes VALUES (%s)", rows)
        return bool(rows)
