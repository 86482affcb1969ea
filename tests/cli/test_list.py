"""`list`: formats, filters, order, limits."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.cli.place import Place, at, failed, retrying

FIELDS = [
    "key", "backend", "id", "type", "native_status", "condition", "attempts", "max_attempts", "next_retry_at",
    "will_run_again", "why", "error", "cause", "recoverable", "created_at", "updated_at", "expires_at",
]


@pytest.fixture
def two(place: Place) -> Place:
    place.queue("one", failed("a", "ERR_AUTH: invalid key"), retrying("b", 600), failed("d", None, 1, "DONE"))
    place.queue("two", failed("c", "ERR_AUTH: invalid key", 2))
    return place


def keys(text: str) -> list[str]:
    return [json.loads(line)["key"] for line in text.splitlines()]


def test_a_pipe_gets_json_lines_with_exactly_these_fields(two: Place) -> None:
    done = two.run("list")
    assert (done.code, done.err) == (0, "")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert all(list(row) == FIELDS for row in rows)
    by_key = {row["key"]: row for row in rows}
    assert set(by_key) == {"one/a", "one/b", "two/c"}
    assert by_key["one/b"] | {"why": ""} == {
        "key": "one/b", "backend": "one", "id": "b", "type": "ANALYZE_EXECUTED", "native_status": "PENDING",
        "condition": "retrying", "attempts": 1, "max_attempts": 4, "will_run_again": True, "why": "",
        "next_retry_at": at(600).replace("+00:00", "Z"), "error": "ERR_TIMEOUT: too slow",
        "cause": by_key["one/b"]["cause"], "recoverable": True,
        "created_at": at(-7200).replace("+00:00", "Z"), "updated_at": at(-60).replace("+00:00", "Z"), "expires_at": None,
    }
    assert (by_key["one/a"]["condition"], by_key["one/a"]["why"]) == ("terminal", "4 of 4 attempts used")
    assert by_key["two/c"]["condition"] == "failed"


def test_json_is_one_array_and_csv_has_a_header(two: Place) -> None:
    as_json = json.loads(two.run("list", "--format", "json").out)
    rows = list(csv.DictReader(io.StringIO(two.run("list", "--format", "csv").out)))
    assert [row["key"] for row in rows] == [row["key"] for row in as_json]
    assert list(rows[0]) == FIELDS
    assert json.loads(two.run("list", "--format", "json", "--where", "nowhere").out) == []
    assert two.run("list", "--format", "csv", "--where", "nowhere").out.splitlines() == [",".join(FIELDS)]


def test_a_table_says_the_condition_in_a_symbol_and_a_word(two: Place) -> None:
    done = two.run("list", "--format", "table")
    lines = done.out.splitlines()
    assert lines[0].split() == ["key", "condition", "attempts", "next", "error", "updated", "type"]
    assert any("⊗ terminal" in line and "4/4" in line and "one/a" in line for line in lines)
    assert any("↻ retrying" in line and ("in 9m" in line or "in 8m" in line) for line in lines)  # it may have taken a while


@pytest.mark.parametrize(("width", "shown", "gone"), [
    ("200", "key condition attempts next error updated type", ""),
    ("60", "key condition attempts error", "type"),
    ("45", "key condition error", "next"),
    ("24", "key condi", "attempts"),
])
def test_narrow_terminals_lose_columns_not_order(
    two: Place, monkeypatch: pytest.MonkeyPatch, width: str, shown: str, gone: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    lines = two.run("list", "--format", "table").out.splitlines()
    assert len(lines) == 4
    assert " ".join(lines[0].split()).startswith(shown)
    assert not gone or gone not in lines[0]
    assert max(len(line.rstrip()) for line in lines) <= int(width)


def test_filters_orders_and_backends(two: Place) -> None:
    assert keys(two.run("list", "--where", "condition:terminal").out) == ["one/a"]
    assert keys(two.run("list", "--where", "-error~auth").out) == ["one/b"]
    assert keys(two.run("list", "--where=-error~auth").out) == ["one/b"]
    assert keys(two.run("list", "--where", "condition:* key:d").out) == ["one/d"]
    assert keys(two.run("list", "--backend", "two").out) == ["two/c"]
    assert keys(two.run("list", "--where", "backend:o*", "--sort", "id").out) == ["one/a", "one/b"]
    assert keys(two.run("list", "--sort", "-attempts").out) == ["one/a", "two/c", "one/b"]
    assert keys(two.run("list", "--sort", "attempts:asc").out) == ["one/b", "two/c", "one/a"]


def test_a_limit_is_reported_never_silent(two: Place) -> None:
    done = two.run("list", "--limit", "2")
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert done.err == "Showing the first 2. Use --limit 0 to show all, or --where to narrow the list.\n"
    assert two.run("list", "--limit", "3").err == ""
    assert len(two.run("list", "--limit", "0").out.splitlines()) == 3


def test_nothing_found_is_said_to_a_person(two: Place) -> None:
    done = two.run("list", "--where", "nowhere", "--format", "table")
    assert (done.code, done.out, done.err) == (0, "", "Nothing matches.\n")


def test_many_rows_stream_in_every_format(place: Place) -> None:
    place.queue("big", *(failed(f"{n:05}") for n in range(1_300)))
    assert len(place.run("list", "--limit", "0").out.splitlines()) == 1_300
    assert len(json.loads(place.run("list", "--limit", "0", "--format", "json").out)) == 1_300
    assert len(place.run("list", "--limit", "0", "--format", "csv").out.splitlines()) == 1_301
    assert len(place.run("list", "--limit", "0", "--format", "table").out.splitlines()) == 1_301


def test_a_long_filter_is_answered_or_refused_never_blamed_on_the_backend(place: Place) -> None:
    place.deadline = "30s"  # it is not about speed
    place.queue("big", *(failed(f"p{n}") for n in range(600)))
    keys = [f"p{n}" for n in range(600)]
    assert len(place.run("list", "--limit", "0", "--where", f"key:{','.join(keys[:500])}").out.splitlines()) == 500
    for where in (f"key:{','.join(keys)}", " ".join(f"-error~{key}" for key in keys)):
        refused = place.run("list", f"--where={where}")
        assert refused.code == 2
        assert "More than 500 values in one filter" in refused.err


@pytest.mark.parametrize(("arguments", "said"), [
    (("list", "--where", "condtion:failed"), "retriage: Unknown field 'condtion' (column 1). Did you mean 'condition'?"),
    (("list", "--where", "updated<soon"), "retriage: 'soon' is not a time (column 9). Write a duration (15m, 2h, 1d12h), or a date or time in UTC (2026-11-01, 2026-11-01T12:00Z)."),
    (("list", "--where", "type:x backend:tow"), "retriage: No backend named 'tow' (column 8). Did you mean 'two'?"),
    (("list", "--backend", "tow"), "retriage: No backend named 'tow'. Did you mean 'two'?"),
    (("list", "--sort", "colour"), "retriage: Cannot sort by 'colour'. Sort by updated, created, next, attempts, type, id, backend; add :asc or :desc for the direction."),
    (("list", "--limit", "-1"), "retriage: --limit: '-1' is not a whole number such as 100. See `retriage list --help`."),
    (("list", "--limit", "many"), "retriage: --limit: 'many' is not a whole number such as 100. See `retriage list --help`."),
    (("lits",), "retriage: Unknown command 'lits'. Did you mean 'list'?"),
    (("\x1b[31mx",), "retriage: Unknown command '\\x1b[31mx'. Known: "),
    (("list", "--wher", "x"), "retriage: Unknown option --wher. Did you mean '--where'?"),
    (("list", "--colour"), "retriage: Unknown option --colour. See `retriage list --help`."),
    (("list", "extra"), "retriage: Unexpected argument: extra. See `retriage list --help`."),
    (("list", "--format", "xml"), "retriage: --format cannot be 'xml'. Known: csv, json, jsonl, table."),
    (("requeue", "--key", "one/1"), "retriage: Missing: --reason. See `retriage requeue --help`."),
    (("list", "--limit"), "retriage: --limit needs a value. See `retriage list --help`."),
    (("plan", "--all", "--wake"), "retriage: Unknown option --wake. "),
    (("upcoming", "--until", "later"), "retriage: --until: 'later' is not a duration such as 90s, 5m, 1h30m or 2d"),
    (("upcoming", "--buckets", "100000"), "retriage: --buckets 100000 is too many. Use at most 1000."),
    (("upcoming", "--where", "cause:abcd"), "retriage: Upcoming retries cannot be filtered by cause. Remove the cause: term."),
])
def test_mistakes_get_one_line_and_exit_2(two: Place, arguments: tuple[str, ...], said: str) -> None:
    done = two.run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(said)
    assert done.err.count("\n") == 1
