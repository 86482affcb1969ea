"""`alerts` and `metrics` on real queues: exit codes, hooks, secrets, and what a scraper reads."""

from __future__ import annotations

import json
import sqlite3
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_parser

from console.cli.alerts import alerts
from console.core.history import Snapshot
from console.core.openmetrics import Gauge, openmetrics
from console.core.ports import Never
from console.core.session import Session
from console.history.samples import Reading, SampleWriter
from console.history.store import open_history
from console.sessions import open_session
from console.settings import load
from console.testing import FrozenClock, StopFlag
from tests.cli.place import Place, failed, retrying
from tests.cli.test_items import rows
from tests.history.world import MINUTE, reading

SECRET = "canary-0815"
HOSTILE = 'ERR: "quoted" \\ back \x1b[31m\nsecond line'


@pytest.fixture
def queues(place: Place) -> Place:
    place.queue("one", *(failed(f"a{n}", HOSTILE) for n in range(12)), *(retrying(f"r{n}", 300) for n in range(5)))
    place.queue("two", failed("b", "ERR_AUTH: invalid api key"))
    place.use_wal("one", "two")
    return place


def alerts_section(place: Place, rules: str, hooks: str = "") -> None:
    place.console = f"alerts:\n  rules:\n{rules}{hooks}"  # follows the keys of `console:`


def test_an_alert_is_on_and_calls_its_hook(queues: Place, tmp_path: Path) -> None:
    out = tmp_path / "calls.jsonl"
    code = f"import sys; open({str(out)!r}, 'a').write(sys.stdin.read() + chr(10))"
    hook = json.dumps([sys.executable, "-c", code])
    alerts_section(queues, "  - new_cause: 10\n  - storm_ahead: 5 within 15m\n  - trail_broken: true\n",
                   f"  hooks:\n    pager: {{command: {hook}}}\n")
    done = queues.run("alerts", "--once")
    assert done.code == 6
    found = {row["kind"]: row for row in rows(done.out)}
    assert set(found) == {"new_cause", "storm_ahead"}
    assert found["new_cause"]["text"] == "New cause with 12 failures"
    (call,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert {alert["kind"] for alert in call["alerts"]} == {"new_cause", "storm_ahead"}
    assert call["alerts"][0]["sample"].startswith('ERR: "quoted"')
    again = queues.run("alerts", "--once")
    assert again.code == 6
    assert len(out.read_text().splitlines()) == 1  # quiet
    with sqlite3.connect(queues.folder / "one.db") as connection:
        connection.execute("DELETE FROM async_tasks")
    connection.close()
    (queues.folder / ".local/state/retriage/history.db").unlink()
    assert queues.run("alerts", "--once").code == 0


def test_an_acknowledged_cause_is_no_alert(queues: Place) -> None:
    alerts_section(queues, "  - new_cause: 10\n")
    signature = str(max(rows(queues.run("causes").out), key=lambda row: int(str(row["count"])))["cause"])
    assert queues.run("alerts", "--once").code == 6
    assert queues.run("causes", "ack", signature).code == 0
    assert queues.run("alerts", "--once").code == 0


def test_a_system_that_is_away_and_a_hook_that_fails(queues: Place) -> None:
    code = "import sys; sys.exit('no line to the pager')"
    hook = json.dumps([sys.executable, "-c", code])
    alerts_section(queues, "  - unreachable: 1ms\n", f"  hooks:\n    pager: {{command: {hook}}}\n")
    (queues.folder / "two.db").unlink()
    assert queues.run("alerts", "--once").code == 0  # not yet for long enough
    done = queues.run("alerts", "--once")
    assert (done.code, rows(done.out)[0]["subject"]) == (6, "two")
    assert "no line to the pager" in done.err
    again = queues.run("alerts", "--once")
    assert "no line to the pager" in again.err  # nobody was told, so it is tried again


def test_a_system_that_was_recorded_and_goes_away_is_unreachable_with_the_next_sample(queues: Place) -> None:
    """Whoever records: its last figures, which are still shown for a while, do not hide it."""
    alerts_section(queues, "  - unreachable: 1ms\n")
    history = open_history(f"sqlite:///{queues.folder}/.local/state/retriage/history.db", read_only=False)
    other, now = SampleWriter(history.storage, "another process"), datetime.now(UTC)
    other.write([reading("one", {"aa11": 12}), reading("two", {"bb22": 1})], now - 2 * MINUTE)
    other.write([reading("one", {"aa11": 12}), Reading("two", fault="connection refused")], now - MINUTE)
    assert queues.run("alerts", "--once").code == 0  # not yet for long enough
    done = queues.run("alerts", "--once")
    assert (done.code, rows(done.out)[0]["facts"]) == (6, {"backend": "two", "why": "connection refused"})
    families = {family.name: family for family in text_string_to_metric_families(queues.run("metrics").out)}
    assert {s.labels["backend"]: s.value for s in families["retriage_backend_up"].samples} == {"one": 1, "two": 0}
    assert "two does not answer: connection refused" in queues.run("report", "--format", "markdown").out
    history.close()


def test_the_secret_of_a_webhook_is_shown_nowhere(queues: Place) -> None:
    hooks = (
        f'  hooks:\n    chat: {{webhook: "https://127.0.0.1:1/{SECRET}", retries: 0, timeout: 5s,'
        f' headers: {{Authorization: "{SECRET}"}}}}\n'
    )
    alerts_section(queues, "  - new_cause: 10\n", hooks)
    for command in (["alerts", "--once"], ["check"], ["alerts", "--once", "--format", "table"], ["metrics"]):
        done = queues.run(*command)
        assert SECRET not in done.out + done.err
    assert "hook chat (https://127.0.0.1): cannot be reached" in queues.run("alerts", "--once").err
    for path in (queues.folder / ".local").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_read_only_alerts_write_nothing(queues: Place) -> None:
    alerts_section(queues, "  - new_cause: 10\n")
    queues.console = "  read_only: true\n" + queues.console
    assert queues.run("alerts", "--once").code == 6
    assert queues.run("metrics").code == 0
    assert not (queues.folder / ".local").exists()


@pytest.mark.parametrize(("section", "said"), [
    ("  - new_causes: 10\n", "unknown key"),
    ("  - {new_cause: 10, unreachable: 2m}\n", "needs exactly one of"),
    ("  - cause_grows: 0.5x\n", "such as 3x"),
    ("  - storm_ahead: 200\n", "such as 200 within 15m"),
    ("  - storm_ahead: 200 within 2h\n", "at most 1h"),
    ("  - {new_cause: 10, hooks: [pagr]}\n  hooks:\n    pager: {command: [/bin/true]}\n", "Did you mean 'pager'?"),
    ("  - new_cause: 10\n  hooks:\n    x: {webhook: 'http://plain.example/canary-0815'}\n", "starts with https://"),
    ("  - new_cause: 10\n  hooks:\n    x: {webhook: 'https://u:canary-0815@host.example/'}\n", "without a user name"),
    ("  - new_cause: 10\n  hooks:\n    x: {}\n", "either a command or a webhook"),
    ("  - new_cause: 10\n  hooks:\n    x: {command: []}\n", ""),
])
def test_mistakes_in_rules_and_hooks(queues: Place, section: str, said: str) -> None:
    queues.console = f"alerts:\n  rules:\n{section}"
    done = queues.run("alerts", "--once")
    assert done.code == 2
    assert said in done.err
    assert SECRET not in done.err


def test_without_rules(queues: Place) -> None:
    done = queues.run("alerts", "--once")
    assert (done.code, "No alert rules are configured" in done.err) == (2, True)


# --- metrics


def test_a_scraper_reads_the_metrics(queues: Place, tmp_path: Path) -> None:
    done = queues.run("metrics")
    assert done.code == 0
    families = {family.name: family for family in text_string_to_metric_families(done.out)}
    items = {tuple(sample.labels.values()): sample.value for sample in families["retriage_items"].samples}
    assert items["one", "terminal"] == 12
    assert items["one", "retrying"] == 5
    assert {sample.labels["backend"]: sample.value for sample in families["retriage_backend_up"].samples} == {
        "one": 1, "two": 1,
    }
    due = {(s.labels["backend"], s.labels["within"]): s.value for s in families["retriage_retries_due"].samples}
    assert (due["one", "5m"], due["one", "15m"], due["one", "1h"]) in ((0, 5, 5), (5, 5, 5))
    assert sum(sample.value for sample in families["retriage_causes"].samples) == 3
    assert {family.name for family in plain_parser(done.out)} >= {"retriage_items", "retriage_overrides"}
    target = tmp_path / "retriage.prom"
    target.write_text("somebody else's file")
    assert queues.run("metrics", "--output", str(target)).code == 2
    target.unlink()
    for _ in range(2):  # its own file is replaced
        assert queues.run("metrics", "--output", str(target)).code == 0
    assert list(text_string_to_metric_families(target.read_text()))
    assert queues.run("metrics", "--output", str(tmp_path / "none" / "x.prom")).code == 2


def test_a_system_that_is_away_is_down(queues: Place) -> None:
    (queues.folder / "two.db").unlink()
    done = queues.run("metrics")
    assert done.code == 1
    families = {family.name: family for family in text_string_to_metric_families(done.out)}
    assert {s.labels["backend"]: s.value for s in families["retriage_backend_up"].samples} == {"one": 1, "two": 0}


def test_labels_are_escaped() -> None:
    text = openmetrics([Gauge("x", 'help \\ "h"\n2', [({"a": 'q"\\\n\ud800'}, 1.5)], "")])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"a": 'q"\\\n?'}
    assert family.samples[0].value == 1.5


def test_alerts_that_record_nothing_read_the_systems_within_the_budget(queues: Place) -> None:
    """Every minute, for days. A single evaluation reads them once, whatever it costs."""
    alerts_section(queues, "  - new_cause: 10\n")
    queues.console = "  read_only: true\n" + queues.console
    session = open_session(load(queues.write_config()), stop=Never(), needs_trail=True)
    stop, read = StopFlag(), list[Snapshot]()

    def repeated() -> Callable[[], Snapshot]:
        def sample() -> Snapshot:
            assert session.sample is not None
            read.append(session.sample())
            if len(read) == 2:
                stop.set()
            return read[-1]

        return sample

    def unlimited() -> Snapshot:
        raise AssertionError("read without a budget")

    clock = FrozenClock(datetime.now(UTC))
    given = replace(session, sample=unlimited, repeated_sample=repeated, stop=stop, clock=clock)

    class Context:
        def session(self) -> Session:
            return given

    assert alerts(Namespace(once=False, format=None), Context()) == 0  # type: ignore[arg-type]
    assert [len(one.systems) for one in read] == [2, 2]
    session.close()
