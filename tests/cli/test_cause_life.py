"""`causes` with states and trends, `causes ack|snooze|…`, `--at` and `history`, on real queues."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from console.last_looked import last_looked, note_look
from tests.cli.place import Place, at, failed, retrying
from tests.cli.test_items import rows


@pytest.fixture
def queues(place: Place) -> Place:
    place.queue("one", *(failed(f"a{n}", f"ERR: rate limit, retry after {n}s") for n in range(3)), retrying("r", 400),
                failed("x", "ERR_AUTH: invalid api key"))
    place.queue("two", failed("b", "ERR: rate limit, retry after 77s"))
    place.use_wal("one", "two")
    return place


def biggest(place: Place) -> dict[str, object]:
    return next(one for one in rows(place.run("causes").out) if one["count"] == 4)


def test_an_acknowledged_cause_is_listed_last_with_its_count(queues: Place) -> None:
    first = biggest(queues)
    assert (first["state"], first["owner"], first["notes"], first["trend"]) == ("new", "", [], None)
    signature = str(first["cause"])
    done = queues.run("causes", "ack", signature[:6], "--note", "provider is down")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"Acknowledged: cause {signature}, 4 failures in one, two.\n"
    assert queues.run("causes", "assign", signature, "bo").code == 0
    assert queues.run("causes", "note", signature, "see OPS-12").code == 0
    done = queues.run("causes", "--format", "table")
    assert "acknowledged" in done.out.splitlines()[-1]
    assert "bo" in done.out.splitlines()[-1]
    assert done.err == "Listed last: 1 acknowledged, with 4 failures.\n"
    done = queues.run("causes", "--format", "table", "--limit", "1")
    assert signature not in done.out
    assert "Listed last: 1 acknowledged, with 4 failures." in done.err
    found = biggest(queues)
    assert (found["state"], found["owner"]) == ("acknowledged", "bo")
    assert [one["text"] for one in found["notes"]] == ["provider is down", "see OPS-12"]  # type: ignore[attr-defined]
    listed = queues.run("trail", "list", "--format", "table").out
    assert f"acknowledged · {signature} · provider is down" in listed
    assert queues.run("trail", "verify").code == 0


def test_a_snoozed_cause_comes_back_when_it_doubles(queues: Place) -> None:
    signature = str(biggest(queues)["cause"])
    assert queues.run("causes", "snooze", signature, "--until-doubles").code == 0
    assert biggest(queues)["state"] == "snoozed"
    with sqlite3.connect(queues.folder / "two.db") as connection:
        connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                               [failed(f"more{n}", "ERR: rate limit, retry after 9s") for n in range(4)])
    connection.close()
    assert next(one for one in rows(queues.run("causes").out) if one["cause"] == signature)["state"] == "new"


def test_a_resolved_cause_that_fails_again_has_regressed(queues: Place) -> None:
    signature = str(biggest(queues)["cause"])
    assert queues.run("causes", "resolve", signature, "--note", "key rotated").code == 0
    assert biggest(queues)["state"] == "resolved"
    with sqlite3.connect(queues.folder / "two.db") as connection:
        connection.execute("UPDATE async_tasks SET updated_at = ? WHERE task_id = 'b'", (at(60),))
    connection.close()
    found = biggest(queues)
    assert found["state"] == "regressed"
    assert found["by"]
    assert f"{signature}: regressed, had been resolved by {found['by']}.\n" in queues.run("causes").err
    assert queues.run("causes", "reopen", signature).code == 0
    assert biggest(queues)["state"] == "new"


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (("ack", "zz"), 2, "'zz' is not a cause. Write at least 4 of the digits"),
    (("ack", "0123abcd"), 2, "No cause begins with '0123abcd'"),
    (("snooze", "CAUSE"), 2, "Nothing would end the snooze. Add --until TIME, --until-doubles or --until-another-system."),
    (("snooze", "CAUSE", "--until", "soon"), 2, "--until cannot be 'soon'"),
    (("snooze", "CAUSE", "--until", "2020-01-01"), 2, "has already passed"),
    (("note", "CAUSE", " "), 2, "The note is empty"),
    (("ack",), 2, "Missing: CAUSE"),
])
def test_mistakes_have_one_line(queues: Place, arguments: tuple[str, ...], code: int, said: str) -> None:
    signature = str(biggest(queues)["cause"])
    done = queues.run("causes", *(signature if word == "CAUSE" else word for word in arguments))
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_read_only_records_nothing(queues: Place) -> None:
    queues.console = "  read_only: true\n"
    signature = str(biggest(queues)["cause"])
    for command in (["causes", "ack", signature], ["history", "record", "--once"], ["history", "mark", "v1"]):
        assert queues.run(*command).code == 3
    assert queues.run("causes", "--format", "table").code == 0
    assert not (queues.folder / ".local").exists()


def test_the_past_is_shown_as_it_was_recorded(queues: Place) -> None:
    assert queues.run("causes", "--at", "1m").err.startswith("retriage: Nothing is recorded yet.")
    done = queues.run("history", "record", "--once")
    assert (done.code, done.err) == (0, "Recorded.\n")
    assert queues.run("history", "mark", "api v1.2.3").code == 0
    with sqlite3.connect(queues.folder / "one.db") as connection:
        connection.execute("DELETE FROM async_tasks")
    connection.close()
    now = datetime.now(UTC).isoformat()
    done = queues.run("causes", "--at", now)
    assert {row["count"] for row in rows(done.out)} == {4, 1}
    assert "As recorded at" in done.err
    only = rows(queues.run("causes", "--at", now, "--backend", "two").out)
    assert [row["backends"] for row in only] == [{"two": 1}]
    upcoming = rows(queues.run("upcoming", "--at", now, "--backend", "one").out)
    assert sum(int(str(row["count"])) for row in upcoming) == 1
    assert rows(queues.run("causes").out)[0]["trend"][-1] == 4  # type: ignore[index]  the last sample
    for wrong in (["causes", "--at", "yesterday"], ["causes", "--at", "2099-01-01"], ["causes", "--at", "30d"],
                  ["causes", "--at", now, "--where", "updated<1h"], ["upcoming", "--at", now, "--until", "1d"]):
        assert queues.run(*wrong).code == 2


def test_a_count_from_a_sample_says_so(queues: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {row["exact"] for row in rows(queues.run("causes").out)} == {True}
    monkeypatch.setattr("console.history.recorder.MOST_ERRORS", 2)
    assert queues.run("history", "record", "--once").code == 0
    done = queues.run("causes", "--at", datetime.now(UTC).isoformat())
    assert {(*row["backends"], row["exact"]) for row in rows(done.out)} == {("one", "two", False)}  # type: ignore[misc]
    table = queues.run("causes", "--at", datetime.now(UTC).isoformat(), "--format", "table").out
    assert " ~" in table
    families = {family.name: family for family in text_string_to_metric_families(queues.run("metrics").out)}
    assert {sample.value for sample in families["retriage_items_exact"].samples} == {1}
    assert "| \\~" in queues.run("report", "--format", "markdown").out


def test_a_system_that_does_not_answer_is_a_gap(queues: Place) -> None:
    (queues.folder / "two.db").unlink()
    done = queues.run("history", "record", "--once")
    assert done.code == 1
    assert "Cannot connect" in done.err
    done = queues.run("causes", "--at", datetime.now(UTC).isoformat())
    assert {row["count"] for row in rows(done.out)} == {3, 1}
    assert "retriage: two: did not answer: " in done.err


def test_a_broken_history_or_trail_stops_nobody_from_reading(queues: Place) -> None:
    state = queues.folder / ".local/state/retriage"
    state.mkdir(parents=True)
    (state / "history.db").write_bytes(b"no database at all, but long enough to be read as one" * 100)
    (state / "trail.db").write_bytes(b"no database at all, but long enough to be read as one" * 100)
    done = queues.run("causes")
    assert (done.code, len(rows(done.out))) == (0, 3)
    assert "The history cannot be used" in done.err
    assert "The trail is broken" in done.err


def test_what_is_new_since_the_last_look(queues: Place, tmp_path: Path) -> None:
    assert all(row["new_to_you"] is False for row in rows(queues.run("causes").out))
    assert last_looked() is None  # a script is no look
    queues.run("causes", "--format", "table")
    assert last_looked() is not None
    assert all(row["new_to_you"] is False for row in rows(queues.run("causes").out))
    note_look(datetime.now(UTC) - timedelta(hours=3))
    assert all(row["new_to_you"] is True for row in rows(queues.run("causes").out) if row["cause"])
    assert "new *" in queues.run("causes", "--format", "table").out
    (tmp_path / ".local/state/retriage/last-looked").write_text("never")
    assert last_looked() is None


def test_json_has_every_field(queues: Place) -> None:
    (found, *_) = json.loads(queues.run("causes", "--format", "json").out)
    assert {"state", "since", "by", "owner", "notes", "trend", "new_to_you"} <= set(found)


@pytest.mark.parametrize("command", [
    ["causes"], ["history", "record", "--once"], ["history", "mark", "v1"], ["causes", "--at", "1h"], ["metrics"], ["report"],
])
def test_the_password_of_the_history_is_shown_nowhere(queues: Place, command: list[str]) -> None:
    queues.console = "history:\n  url: postgresql://ops:canary-9931@127.0.0.1:1/ops\n"
    done = queues.run(*command)
    assert "canary-9931" not in done.out + done.err
    if command[0] == "causes" and len(command) == 1:
        assert (done.code, len(rows(done.out))) == (0, 3)
        assert "The history cannot be used" in done.err
