"""`state`: what an operator of a pipeline types, from inspecting to backfilling, and every rule on the way."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import Any

import pexpect
import psycopg
import pytest

from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import Partition
from tests.cli.partitions import RUN, Pipeline, day
from tests.cli.place import Place, environment, failed
from tests.patience import PATIENCE
from tests.plugins.partition_store.stores import tree_hash
from tests.plugins.postgres_analyses.server import database

REFUSED, USAGE = 3, 2


@pytest.fixture
def pipeline(place: Place) -> Pipeline:
    made = Pipeline(place)
    for customer in ("c1", "c2"):
        for ago in (1, 2, 3):
            made.put(Partition("ads", customer, "spend", day(ago)))
    made.put(Partition("ads", "c1", "clicks", day(1)), "success")
    made.put(Partition("c1", "x", "spend", day(1)), attempts=3)
    return made


def rows(place: Place, *arguments: str) -> list[dict[str, Any]]:
    done = place.run("state", *arguments)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def ids(place: Place, *arguments: str) -> set[str]:
    return {row["id"] for row in rows(place, *arguments)}


def test_inspect_lists_what_is_narrowed(place: Place, pipeline: Pipeline) -> None:
    assert len(ids(place, "inspect")) == 8
    assert ids(place, "inspect", "--customer-id", "c1", "--query-name", "spend", "--since", day(2)) == {
        f"ads/c1/spend/{day(1)}", f"ads/c1/spend/{day(2)}",
    }
    assert ids(place, "inspect", "--source", "c1") == {f"c1/x/spend/{day(1)}"}
    assert ids(place, "inspect", "--logical-date", day(3), "--logical-date", day(2), "--customer-id", "c2") == {
        f"ads/c2/spend/{day(2)}", f"ads/c2/spend/{day(3)}",
    }
    assert ids(place, "inspect", "--until", day(3)) == {f"ads/c1/spend/{day(3)}", f"ads/c2/spend/{day(3)}"}
    assert len(ids(place, "inspect", "--until", "9999-12-31")) == 8, "the last day there is"
    done = place.run("state", "inspect", "--source", "ads", "--format", "table")
    assert "7 partitions: 6 failed, 1 done" in done.err, "in the order of the conditions"
    assert "not retried automatically" in done.out


def test_inspect_shows_one_with_its_runs(place: Place, pipeline: Pipeline) -> None:
    shown = place.run("state", "inspect", "--source", "ads", "--customer-id", "c1", "--query-name", "spend", "--logical-date", day(1))
    assert shown.code == 0, shown.err
    one = json.loads(shown.out)
    assert one["native"]["attempt_count"] == "1"
    assert any("sealed, 1 records" in value for value in one["extra"].values())


def test_terminal_says_why(place: Place, pipeline: Pipeline) -> None:
    (one,) = rows(place, "terminal")
    assert (one["id"], one["why"]) == (f"c1/x/spend/{day(1)}", "3 of 3 attempts used")


def test_history_has_runs_attempts_overrides_and_what_comes_next(place: Place, pipeline: Pipeline) -> None:
    named = ("--source", "ads", "--customer-id", "c1", "--query-name", "spend", "--logical-date", day(1))
    events = rows(place, "history", *named)
    assert [event["what"] for event in events] == ["run extracted", "attempt 1 failed", "no retry scheduled"]
    assert place.run("state", "retry", *named, "--reason", "source is fixed", "--confirm", "1").code == 0
    events = rows(place, "history", *named)
    assert events[-1]["what"] == "next retry"
    assert "source is fixed" in str([event for event in events if event["what"] == "override"])
    assert place.run("state", "history", "--customer-id", "c1").code == USAGE


WRITES: dict[str, tuple[tuple[str, ...], str, int]] = {
    "retry": (("retry", "--customer-id", "c2"), "ads/c2", 3),
    "retry-terminal": (("retry", "--source", "c1", "--include-terminal-partitions"), "c1/x", 1),
    "retry-back-off": (("retry", "--customer-id", "c2", "--logical-date", day(1), "--respect-backoff"), "ads/c2", 1),
    "reprocess": (("reprocess", "--query-name", "clicks"), "ads/c1/clicks", 1),
    "mark-terminal": (("mark-terminal", "--customer-id", "c2", "--until", day(2)), "ads/c2", 2),
    "pause": (("pause", "--source", "ads", "--query-name", "spend"), "ads", 6),
    "backfill": (("backfill", "--source", "ads", "--customer-id", "c9", "--query-name", "spend", "--since", day(9)), "ads/c9", 10),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_planned_confirmed_recorded_undone_and_leaves_raw_data(place: Place, pipeline: Pipeline, name: str) -> None:
    arguments, prefix, count = WRITES[name]
    before, raw = pipeline.sql("SELECT * FROM partition_state ORDER BY 1, 2, 3, 4"), tree_hash(pipeline.raw)
    refused = place.run("state", *arguments, "--reason", "because")
    assert refused.code == REFUSED
    assert f"{count} of {count} selected item{'s' * (count > 1)}\n" in refused.err
    assert f"Confirm with --confirm {count}." in refused.err
    assert pipeline.sql("SELECT * FROM partition_state ORDER BY 1, 2, 3, 4") == before
    done = place.run("state", *arguments, "--reason", "because", "--ticket", "OPS-9", "--confirm", str(count))
    assert done.code == 0, done.err
    assert f"finished: {count} {'requeued' if arguments[0] == 'retry' else 'applied'}" in done.err
    override = json.loads(place.run("overrides", "list").out.splitlines()[0])
    assert (override["reason"], override["ticket"]) == ("because", "OPS-9")
    shown = json.loads(place.run("overrides", "show", override["override_id"], "--items").out)
    assert len(shown["items"]) == count
    assert all(item["key"].startswith(f"parts/{prefix}") for item in shown["items"])
    assert place.run("trail", "verify").code == 0
    assert place.run("overrides", "undo", override["override_id"], "--reason", "wrong", "--confirm", str(count)).code == 0
    assert pipeline.sql("SELECT * FROM partition_state ORDER BY 1, 2, 3, 4") == before
    assert tree_hash(pipeline.raw) == raw


def test_marks_and_pauses_come_and_go(place: Place, pipeline: Pipeline) -> None:
    one = ("--customer-id", "c2", "--logical-date", day(1), "--reason", "customer left", "--confirm", "1")
    assert place.run("state", "mark-terminal", *one).code == 0
    assert any("marked terminal by" in row["why"] and "customer left" in row["why"] for row in rows(place, "terminal"))
    skipped = place.run("state", "retry", *one)
    assert skipped.code == REFUSED
    assert "Terminal. Use --include-terminal-partitions." in skipped.err
    assert place.run("state", "clear-terminal", *one).code == 0
    assert place.run("state", "pause", *one).code == 0
    assert "Paused; unpause it first." in place.run("state", "retry", *one).err
    assert place.run("state", "unpause", *one).code == 0
    assert place.run("state", "retry", *one).code == 0
    assert pipeline.statuses()[f"c2/{day(1)}"] == "pending"


def test_backfill_fills_only_the_gaps_and_says_how_far_it_is(place: Place, pipeline: Pipeline) -> None:
    named = ("--source", "ads", "--customer-id", "c1", "--query-name", "spend", "--since", day(5), "--until", day(1))
    done = place.run("state", "backfill", *named, "--reason", "gaps", "--confirm", "2")
    assert done.code == 0, done.err
    assert "skipped    3: Already has a row, which keeps its status. Use --force-pending." in done.err
    assert pipeline.statuses()[f"c1/{day(2)}"] == "failed"
    place.run("state", "inspect", *named)
    err = place.run("state", "inspect", *named).err
    assert "5 partitions:" in err
    assert "2 waiting" in err


def test_backfill_of_the_configured_range(place: Place, pipeline: Pipeline) -> None:
    pipeline.attach(f", validator: true, range: {{start: {day(4)}, end: {day(1)}}}")
    done = place.run("state", "backfill", "--customer-id", "c2", "--since", day(9), "--reason", "gaps", "--confirm", "1")
    assert done.code == 0, done.err
    assert pipeline.statuses()[f"c2/{day(4)}"] == "pending"


SERIES = ("--source", "ads", "--customer-id", "c9", "--query-name", "spend")
DAYS = 46_000  # at least so many since 1900
REFUSALS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "since-1900": (("backfill", *SERIES, "--since", "1900-01-01"), REFUSED, "days from 1900-01-01 to"),
    "unfiltered-retry": (("retry",), REFUSED, "This would select everything"),
    "unfiltered-pause": (("pause",), REFUSED, "or --all for all of them"),
    "unfiltered-unpause": (("unpause",), REFUSED, "This would select everything"),
    "unfiltered-backfill": (("backfill",), REFUSED, "This would select everything"),
    "only-a-wide-filter": (("retry", "--where", "condition:*"), REFUSED, "This would select everything"),
    "reset": (("retry", "--customer-id", "c1", "--attempts", "reset"), REFUSED, "Its attempt_count is never reset."),
    "terminal": (("retry", "--source", "c1"), REFUSED, "Terminal. Use --include-terminal-partitions."),
    "done": (("retry", "--query-name", "clicks", "--where", "condition:done"), REFUSED, "Already done; reprocess it instead."),
    "no-raw-run": (("retry", "--customer-id", "norun"), REFUSED, "The raw sink has no run of it, so it would fail again. Use --force-pending."),
    "outstanding": (("retry", "--customer-id", "pending"), REFUSED, "Already requeued and not picked up yet."),
    "unsafe-segment": (("retry", "--where", "key~dots"), REFUSED, "Invalid: its query_name is not a plain path segment"),
    "unsafe-backfill": (("backfill", "--source", "..", "--customer-id", "c", "--query-name", "q", "--since", day(0)), REFUSED, "Invalid: its source"),
    "future": (("backfill", *SERIES, "--logical-date", day(-2)), REFUSED, "Its logical_date is in the future."),
    "reprocess-failed": (("reprocess", "--key", "parts/ads/c1/spend/DAY"), REFUSED, "only a success is reprocessed"),
    "no-such": (("retry", "--key", "parts/ads/c1/spend/1999-01-01"), REFUSED, "No such item."),
    "no-date": (("retry", "--logical-date", "yesterday"), USAGE, "--logical-date: 'yesterday' is not a date. Write it as 2026-11-09."),
    "no-month": (("retry", "--since", "2026-13-01"), USAGE, "--since: '2026-13-01' is not a date"),
    "backwards": (("retry", "--since", "2026-11-09", "--until", "2026-11-01"), USAGE, "--since 2026-11-09 is after --until 2026-11-01"),
    "both": (("retry", "--logical-date", "2026-11-09", "--since", "2026-11-01"), USAGE, "--logical-date cannot be combined with --since or --until"),
    "key-and-more": (("retry", "--key", "parts/a/b/c/d", "--source", "x"), USAGE, "--key cannot be combined with"),
    "other-backend-key": (("retry", "--key", "q/1"), USAGE, "q/1 is not in parts"),
    "no-since": (("backfill", *SERIES), USAGE, "A backfill needs its first day"),
    "other-backend": (("retry", "--backend", "q", "--all"), USAGE, "q stores no partitions"),
    "unknown-backend": (("retry", "--backend", "part", "--all"), USAGE, "Did you mean 'parts'?"),
    "pace": (("retry", "--all", "--pace", "soon"), USAGE, "Unknown pace 'soon'"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(place: Place, pipeline: Pipeline, name: str) -> None:
    arguments, code, line = REFUSALS[name]
    place.queue("q", failed("1"))
    pipeline.put(Partition("ads", "norun", "spend", day(1)), run=False)
    pipeline.put(Partition("ads", "pending", "spend", day(1)), "pending")
    pipeline.put(Partition("ads", "dots", "..", day(1)), run=False)
    before = pipeline.sql("SELECT * FROM partition_state ORDER BY 1, 2, 3, 4")
    given = [argument.replace("DAY", day(1)) for argument in arguments]
    done = place.run("state", *given, "--reason", "r", "--confirm", "1")
    assert done.code == code, done.err
    assert line in done.err
    if name == "since-1900":
        count = int(done.err.split(" days from 1900-01-01")[0].split()[-1])
        assert count > DAYS
        assert f"a plan may have at most {10_000}" in done.err
    assert pipeline.sql("SELECT * FROM partition_state ORDER BY 1, 2, 3, 4") == before


def test_a_symlink_out_of_the_sink_is_invalid_and_not_followed(place: Place, pipeline: Pipeline) -> None:
    folder = pipeline.raw.joinpath(*Partition("ads", "c1", "spend", day(1)).segments)
    folder.rename(place.folder / "elsewhere")
    folder.symlink_to(place.folder / "elsewhere")
    key = f"parts/ads/c1/spend/{day(1)}"
    done = place.run("state", "retry", "--key", key, "--reason", "r", "--confirm", "1")
    assert done.code == REFUSED
    assert "links are not followed" in done.err
    assert "links are not followed" in json.loads(place.run("state", "inspect", "--key", key).out)["extra"]["invalid"]


def test_all_is_said_when_all_is_meant(place: Place, pipeline: Pipeline) -> None:
    done = place.run("state", "retry", "--all", "--reason", "r", "--confirm", "6")
    assert done.code == 0, done.err
    assert "skipped    1: Terminal. Use --include-terminal-partitions." in done.err


def test_back_off_where_the_validator_is_not_ours(place: Place, pipeline: Pipeline) -> None:
    pipeline.attach("")
    done = place.run("state", "retry", "--customer-id", "c1", "--respect-backoff", "--reason", "r", "--confirm", "3")
    assert (done.code, "Use --pace instead." in done.err) == (USAGE, True)
    done = place.run("state", "reprocess", "--query-name", "clicks", "--reason", "r", "--confirm", "1")
    assert (done.code, "would not see the request" in done.err) == (REFUSED, True)


@pytest.mark.parametrize(("items", "question"), [(19, "Change 19 items"), (20, "Type the number to confirm: ")])
def test_from_twenty_on_the_number_is_typed(place: Place, items: int, question: str) -> None:
    pipeline = Pipeline(place)
    for ago in range(items):
        pipeline.put(Partition("ads", "c1", "spend", day(ago)))
    arguments = ["-m", "console", "--config", str(place.write_config()), "state", "retry", "--customer-id", "c1", "--reason", "r"]
    surroundings: Any = {**environment(place.folder), "TERM": "xterm"}
    child = pexpect.spawn(sys.executable, arguments, env=surroundings, encoding="utf-8", timeout=PATIENCE, use_poll=True)
    child.expect_exact(question)
    child.sendline("y")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == (0 if items < 20 else REFUSED)
    assert set(pipeline.statuses().values()) == {"pending" if items < 20 else "failed"}


def test_read_only_reads_and_refuses_to_write(place: Place, pipeline: Pipeline) -> None:
    before = pipeline.path.read_bytes()
    for command in ("retry", "reprocess", "mark-terminal", "clear-terminal", "pause", "unpause", "backfill"):
        done = place.run("--read-only", "state", command, "--all", "--reason", "r", "--confirm", "1")
        assert (done.code, "This console is read-only" in done.err) == (REFUSED, True), command
    assert place.run("--read-only", "state", "inspect").code == 0
    assert place.run("--read-only", "state", "history", "--key", f"parts/ads/c1/spend/{day(1)}").code == 0
    assert pipeline.path.read_bytes() == before
    assert not list(place.folder.rglob("trail.db*"))


def test_which_store_is_meant(place: Place) -> None:
    place.queue("q", failed("1"))
    assert "No backend stores partitions" in place.run("state", "inspect").err
    pipeline = Pipeline(place)
    place.sections["more"] = place.sections["parts"].replace("  parts:", "  more:")
    done = place.run("state", "inspect")
    assert (done.code, "Several backends store partitions: parts, more" in done.err) == (USAGE, True)
    assert place.run("state", "inspect", "--backend", "more").code == 0
    assert pipeline.sql("SELECT name FROM sqlite_master WHERE name LIKE 'retriage%'") == []


def test_on_postgresql_from_failure_to_success_with_our_validator(place: Place) -> None:
    pipeline = Pipeline(place)
    key = pipeline.put(Partition("ads", "c1", "spend", day(1)))
    with database(STATE_DDL) as url, psycopg.connect(url, autocommit=True) as server:
        insert = f"INSERT INTO partition_state VALUES ({', '.join(['%s'] * 11)})"
        server.execute(insert, pipeline.sql("SELECT * FROM partition_state")[0])
        place.sections["parts"] = place.sections["parts"].replace(f"sqlite:///{pipeline.path}", url).replace(
            "validator: true", "validator: true, handler: 'plugins.partition_store.engine:accept'"
        )
        raw = tree_hash(pipeline.raw)
        done = place.run("state", "retry", "--customer-id", "c1", "--reason", "source is fixed", "--confirm", "1")
        assert done.code == 0, done.err
        running = place.spawn("run", "parts")
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and server.execute("SELECT status FROM partition_state").fetchone() != ("success",):
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        _, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, "success: run" in err) == (0, True), err
        assert server.execute("SELECT attempt_count, current_run_id FROM partition_state").fetchone() == (2, RUN)
        assert json.loads(place.run("state", "inspect", "--key", key).out)["condition"] == "done"
        assert tree_hash(pipeline.raw) == raw
