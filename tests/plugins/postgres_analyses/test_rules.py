"""The condition of each kind of row."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from console.core.backend import PageRequest, Severity
from console.core.faults import WrongSchema
from console.core.item import Condition, Item, ItemKey
from console.core.policy import FixedDelays, PolicyOverride
from console.core.policy_lint import lint
from console.core.query import Filter
from console.testing import FrozenClock
from tests.plugins.postgres_analyses.world import INDEX, NOW, TABLE, Table, postgres_table

ROLE = f"auditor_{secrets.token_hex(6)}"
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def seen(table: Table, id: int, pipeline: str = "vectorization", now: datetime = NOW, /, **options: Any) -> Item:
    backend = table.open(**options)
    try:
        return backend.items([key := ItemKey("analyses", (str(id), pipeline))], now)[key]
    finally:
        backend.close()


@pytest.mark.parametrize(("retries", "delay"), [(0, 60), (1, 300), (2, 900)])
def test_the_delay_is_counted_from_the_last_retry_or_else_from_processing(table: Table, retries: int, delay: int) -> None:
    last = NOW - timedelta(minutes=2)
    first = table.failed(retry_count=retries, processed_at=last)
    again = table.failed(retry_count=retries, last_retry_at=last)
    for id in (first, again):
        item = seen(table, id)
        assert item.condition is Condition.RETRYING
        assert item.verdict.next_retry_at == last + timedelta(seconds=delay)
        assert item.verdict.will_run_again
        assert (item.attempts, item.max_attempts) == (retries + 1, 4)
        assert "shared by both pipelines" in item.notes[0]


def test_the_loop_stops_at_three_retries_and_a_higher_limit_reaches_the_fourth_delay(table: Table) -> None:
    id = table.failed(retry_count=3, last_retry_at=NOW - MINUTE)
    assert seen(table, id).condition is Condition.TERMINAL
    assert seen(table, id).verdict.why == "4 of 4 attempts used"
    raised = seen(table, id, policy=PolicyOverride(max_attempts=5))
    assert raised.verdict.next_retry_at == NOW - MINUTE + timedelta(seconds=1800)


def test_the_delay_that_cannot_be_reached_is_a_warning_of_the_policy(table: Table) -> None:
    backend = table.open()
    assert [warning.code for warning in lint(backend.policy)] == ["unreachable-delay"]
    backend.close()


@pytest.mark.parametrize(
    ("error", "recoverable"),
    [
        ("Connection timeout", True), ("something nobody has seen", True), ("INVALID JSON in answer", False),
        ("missing required field: text", False), ("401 Unauthorized", False), ("Invalid API key", False),
        ("malformed reply", False), ("invalid format", False), ("rate limit", True),
        ("connection refused: invalid api key", False), (None, None), ("", None),
    ],
)
def test_patterns_decide_whether_an_error_is_recoverable(
    table: Table, error: str | None, recoverable: bool | None
) -> None:
    item = seen(table, table.failed(vectorization_error=error))
    assert item.verdict.recoverable is recoverable
    assert item.condition is (Condition.TERMINAL if recoverable is False else Condition.RETRYING)
    if recoverable is False:
        assert item.verdict.why.startswith("unrecoverable error (matches ")


def test_the_patterns_are_configurable(table: Table) -> None:
    id = table.failed(vectorization_error="quota used up")
    assert seen(table, id).condition is Condition.RETRYING
    assert seen(table, id, policy=PolicyOverride(unrecoverable=("quota",))).condition is Condition.TERMINAL


@pytest.mark.parametrize(
    ("retries", "age", "condition", "again"),
    [
        (0, timedelta(minutes=9), Condition.WAITING, True), (0, timedelta(minutes=11), Condition.STUCK, True),
        (2, timedelta(minutes=11), Condition.STUCK, True), (3, timedelta(minutes=11), Condition.STUCK, False),
        (1, timedelta(minutes=9), Condition.RUNNING, True), (0, None, Condition.WAITING, False),
        (None, timedelta(minutes=11), Condition.STUCK, False),
    ],
)
def test_pending_for_over_ten_minutes_is_stuck(
    table: Table, retries: int | None, age: timedelta | None, condition: Condition, again: bool
) -> None:
    processed = None if age is None else NOW - age
    id = table.add(vectorization_status="pending", retry_count=retries, processed_at=processed)
    item = seen(table, id)
    assert (item.condition, item.verdict.will_run_again) == (condition, again)


@pytest.mark.parametrize(("status", "condition"), [
    ("success", Condition.DONE), ("skipped", Condition.DONE), ("FAILED", Condition.UNKNOWN), (None, Condition.UNKNOWN),
])
def test_every_other_status_has_its_condition(table: Table, status: str | None, condition: Condition) -> None:
    item = seen(table, table.failed(vectorization_status=status))
    assert (item.condition, item.native_status) == (condition, status or "")


def test_a_counter_that_is_null_is_failed_because_the_loop_never_retries_it(table: Table) -> None:
    item = seen(table, table.failed(retry_count=None))
    assert (item.condition, item.verdict.will_run_again) == (Condition.FAILED, False)


def test_without_times_a_failed_row_is_taken_at_once_and_a_pending_one_never(table: Table) -> None:
    failed, pending = table.failed(processed_at=None), table.add(vectorization_status="pending", processed_at=None)
    item = seen(table, failed)
    assert (item.condition, item.verdict.will_run_again, item.verdict.next_retry) == (Condition.RETRYING, True, None)
    item = seen(table, pending)
    assert (item.condition, item.verdict.will_run_again) == (Condition.WAITING, False)
    assert item.verdict.why == "It is pending and processed_at is not set, so its loop never takes it."


def test_both_pipelines_of_a_row_are_items_of_their_own(table: Table) -> None:
    id = table.failed(dp_update_status="failed", dp_update_error="malformed", retry_count=1)
    one, other = seen(table, id), seen(table, id, "dp_update")
    assert (one.condition, other.condition) == (Condition.RETRYING, Condition.TERMINAL)
    assert (one.type, other.type) == ("vectorization", "dp_update")
    assert one.attempts == other.attempts == 2


def test_times_are_read_in_the_servers_zone_unless_the_config_says_another() -> None:
    with postgres_table() as berlin:
        id = berlin.failed(processed_at=None)
        berlin.execute(f"UPDATE {TABLE} SET processed_at = '2026-07-01 12:00:00' WHERE id = {id}")
        assert seen(berlin, id).created_at == datetime(2026, 7, 1, 10, tzinfo=UTC)
        assert seen(berlin, id, time_zone="UTC").created_at == datetime(2026, 7, 1, 12, tzinfo=UTC)
        assert seen(berlin, id, time_zone="Asia/Tokyo").created_at == datetime(2026, 7, 1, 3, tzinfo=UTC)


def test_a_time_in_the_repeated_hour_is_marked_as_ambiguous() -> None:
    with postgres_table() as berlin:
        id = berlin.failed(processed_at=None)
        berlin.execute(f"UPDATE {TABLE} SET processed_at = '2026-10-25 02:30:00' WHERE id = {id}")
        item = seen(berlin, id)
        assert item.created_at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        assert any("in the hour that the clock repeats" in note for note in item.notes)
        assert item.verdict.next_retry_at == datetime(2026, 10, 25, 0, 31, tzinfo=UTC)


@pytest.mark.parametrize("minute", range(0, 180, 15))
def test_around_the_repeated_hour_the_predicate_is_the_verdict(postgres: Table, minute: int) -> None:
    now = datetime(2026, 10, 25, 0, 5, tzinfo=UTC) + minute * MINUTE
    for stored in ("2026-10-25 01:50:00", "2026-10-25 02:10:00", "2026-10-25 02:55:00", "2026-10-25 03:10:00"):
        postgres.execute(f"INSERT INTO {TABLE} (processed_at) VALUES ('{stored}')")
    backend = postgres.open()
    whole = backend.page(PageRequest(Filter.parse("condition:*"), now)).items
    stuck = backend.page(PageRequest(Filter.parse("condition:stuck"), now)).items
    assert {item.key for item in stuck} == {item.key for item in whole if item.condition is Condition.STUCK}
    backend.close()


def test_infinity_and_the_distant_past_are_shown(postgres: Table) -> None:
    id = postgres.failed()
    postgres.execute(f"UPDATE {TABLE} SET processed_at = 'infinity', last_retry_at = '4000-01-01 BC' WHERE id = {id}")
    assert any("is not a time" in note for note in seen(postgres, id).notes)


def test_other_names_for_schema_table_and_pipelines() -> None:
    with postgres_table(
        "CREATE SCHEMA other; CREATE TABLE other.jobs (id serial PRIMARY KEY, user_answer_id int, embed_status text,"
        " embed_error text, embed_completed_at timestamp, retry_count int, last_retry_at timestamp, processed_at timestamp);"
        "INSERT INTO other.jobs (embed_status, retry_count, processed_at) VALUES ('failed', 0, now())"
    ) as table:
        item = seen(table, 1, "embed", datetime.now(UTC), table="other.jobs", pipelines=("embed",))
        assert item.condition is Condition.RETRYING


def test_a_missing_table_or_column_is_named(table: Table) -> None:
    with pytest.raises(WrongSchema, match="there is no table"):
        seen(table, 1, table="nowhere.nothing")
    with pytest.raises(WrongSchema, match="has no column embed_status"):
        seen(table, 1, pipelines=("embed",))


def test_check_reports_privileges_indexes_and_times_in_the_future() -> None:
    with postgres_table(INDEX) as table:
        table.failed(last_retry_at=datetime.now(UTC) + 2 * HOUR)
        backend = table.open()
        found = {finding.subject: finding for finding in backend.check(FrozenClock(backend.now()))}
        assert found["role"].message.startswith("role postgres is a superuser")
        assert found["index"].severity is Severity.OK
        assert found["time zone"].severity is Severity.WARNING
        assert "Europe/Berlin" in found["time zone"].message
        backend.close()


def test_check_reports_a_role_that_can_only_read() -> None:
    with postgres_table(f"CREATE ROLE {ROLE} LOGIN") as table:
        try:
            table.execute(f"GRANT USAGE ON SCHEMA selfology TO {ROLE}; GRANT SELECT ON {TABLE} TO {ROLE}")
            auditing = Table(sa.make_url(table.url).set(username=ROLE).render_as_string(), table._run)
            backend = auditing.open(read_only=True, policy=PolicyOverride(max_age=HOUR, backoff=FixedDelays((HOUR,))))
            found = {finding.subject: finding for finding in backend.check(FrozenClock(backend.now()))}
            assert "can read but not write" in found["privileges"].message
            assert "role" not in found
            assert "no index on dp_update_status" in found["index"].message
            assert "max_age has no effect" in found["policy"].message
            backend.close()
        finally:
            table.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")
