"""Nothing lost, nothing twice, everything recorded: the short counts. `python -m tests.faults --full` has the long ones."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from console.ui import screens
from tests.depth import campaign, in_depth
from tests.faults import audit, closed, frozen, hangup, kill, mutate, rivals, signals, soak, suspended, tamper
from tests.faults.__main__ import DISCARDED, OVERRIDES, PARTS, WAITING
from tests.faults.processes import ROOT
from tests.faults.systems import DISCARDS, KINDS, ON_SERVERS
from tests.faults.table import Line, Summary, run_apart
from tests.patience import PATIENCE

SEED = 20261110
OTHERS = [kind for kind in KINDS if kind != "sqlite_queue"]


def killed(*options: str) -> dict[str, Any]:
    """In a process of its own: it forks, which a test runner with threads should not."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.kill", "--seed", str(SEED), *options], cwd=ROOT, text=True, capture_output=True, timeout=PATIENCE
    )
    assert ran.stdout, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


REDIS = [kind for kind in ("rq", "sidekiq", "bullmq") if kind in KINDS]


@pytest.mark.parametrize("kind", in_depth(KINDS, quick=["sqlite_queue", "postgres_analyses", *REDIS[:1]]))
def test_killed_at_random_moments(kind: str) -> None:
    found = killed("--system", kind, "--items", "200", "--kills", "3")
    assert found["ok"], found
    assert found["kills"] >= 3, found


@pytest.mark.parametrize("point", kill.EVERY_POINT)
def test_killed_at_a_named_point(point: str) -> None:
    found = killed("--items", "200", "--kills", "0", "--point", point)
    assert found["ok"], found
    assert found["killed_at"] == {point: 1}, found
    if point in kill.UNKNOWN:
        assert found["unknown"] > 0, "a worker took something before it was known to be applied"


@campaign
@pytest.mark.parametrize("kind", ["sqlite_queue", "file_queue", "postgres_analyses"])
def test_the_driver_can_fail_a_naive_writer_is_caught(kind: str) -> None:
    found = killed("--system", kind, "--items", "300", "--kills", "6", "--naive")
    assert not found["ok"], found
    assert found["twice"] > 0, found
    assert found["unrecorded"] > 0, found


@campaign
@pytest.mark.parametrize("kind", REDIS)
def test_a_queue_in_redis_killed_at_every_named_point(kind: str) -> None:
    found = killed("--system", kind, "--items", "200", "--kills", "0", "--points")
    assert found["ok"], found
    assert found["killed_at"] == dict.fromkeys(kill.EVERY_POINT, 1), found
    assert not found["unknown"], "the mark tells what a script did, whatever workers have done since"


@campaign
@pytest.mark.parametrize("kind", REDIS)
def test_two_consoles_and_four_workers_on_a_queue_in_redis(kind: str) -> None:
    total = rivals.Rivals()
    rivals.trial(kind, 300, SEED, total)
    assert total.ok, total


@campaign
@pytest.mark.skipif("rq" not in KINDS, reason="no Redis")
def test_rqs_own_requeue_loses_jobs_when_it_is_killed() -> None:
    found = killed("--system", "rq", "--items", "300", "--kills", "6", "--naive")
    assert found["lost"] > 0, found


@pytest.mark.parametrize("kind", in_depth(ON_SERVERS, quick=["sql_table"]))
def test_connections_cut_in_mid_chunk(kind: str) -> None:
    found = killed("--system", kind, "--items", "1500", "--kills", "2", "--cut")
    assert found["ok"], found
    assert found["kills"] >= 2, found
    assert not found["unknown"], "nobody else worked on them, so re-reading tells"


@pytest.mark.parametrize("percent", [1, 10, 35, 70, 100])
def test_rows_changed_between_preview_and_apply(tmp_path: Path, percent: int) -> None:
    total = mutate.Mutated()
    mutate.trial("sqlite_queue", tmp_path, 300, percent / 100, SEED + percent, total)
    assert total.ok, (SEED, total)


@pytest.mark.parametrize("kind", OTHERS)
def test_items_of_every_kind_changed_between_preview_and_apply(tmp_path: Path, kind: str) -> None:
    total = mutate.Mutated()
    mutate.trial(kind, tmp_path, 100, 0.4, SEED, total)
    assert total.ok, (SEED, total)


def test_a_writer_that_does_not_look_again_is_caught(tmp_path: Path) -> None:
    total = mutate.Mutated()
    mutate.trial("sqlite_queue", tmp_path, 100, 0.4, SEED, total, naive=True)
    assert total.outside > 0


@pytest.mark.parametrize("kind", in_depth(DISCARDS, quick=["sql_table-delete discard"]))
def test_discards_killed_at_random_moments_and_undone(kind: str) -> None:
    found = killed("--system", kind, "--items", "200", "--kills", "2")
    assert found["ok"], found
    assert found["kills"] >= 2, found


@pytest.mark.parametrize("kind", in_depth(DISCARDS, quick=["sqlite_queue discard"]))
def test_discards_killed_between_the_write_and_its_record(kind: str) -> None:
    found = killed("--system", kind, "--items", "200", "--kills", "0", "--point", "after_write")
    assert found["ok"], found
    assert found["killed_at"] == {"after_write": 1}, found


@pytest.mark.parametrize("kind", in_depth(DISCARDS, quick=["sqlite_queue discard", "sql_table-delete discard"]))
def test_items_changed_between_preview_and_discard(tmp_path: Path, kind: str) -> None:
    total = mutate.Mutated()
    mutate.trial(kind, tmp_path, 100, 0.4, SEED, total)
    assert total.ok, (SEED, total)


def test_a_discard_that_does_not_look_again_is_caught(tmp_path: Path) -> None:
    total = mutate.Mutated()
    mutate.trial("sqlite_queue discard", tmp_path, 100, 0.4, SEED, total, naive=True)
    assert total.outside > 0


@campaign
@pytest.mark.parametrize("kind", DISCARDS)
def test_two_consoles_discard_one_selection_and_four_workers_take_it(kind: str) -> None:
    total = rivals.Rivals()
    rivals.trial(kind, 200, SEED, total)
    assert total.ok, (SEED, total)


@pytest.mark.parametrize("way", closed.WAYS)
def test_an_unusable_trail_means_no_change_soon_said_and_reads_go_on(way: str) -> None:
    total = closed.trials("sqlite_queue", way, 2)
    assert total.ok, total


@pytest.mark.parametrize("kind", OTHERS)
def test_without_a_trail_nothing_of_any_kind_is_changed(kind: str) -> None:
    total = closed.trials(kind, "deleted", 2)
    assert total.ok, total


def test_a_console_that_goes_on_without_a_trail_is_caught() -> None:
    assert closed.trials("sqlite_queue", "deleted", 1, naive=True).changed > 0


@pytest.mark.parametrize("way", ["size", "nobody", "hidden"])
def test_a_trail_without_room_or_rights_means_no_change(way: str) -> None:
    with tempfile.TemporaryDirectory(prefix="retriage-limited-") as folder:
        Path(folder).chmod(0o755)  # another user must be able to come here
        total = closed.Closed()
        closed.limited(Path(folder), way, total)
        assert total.trials, total
        assert total.ok, total


@pytest.mark.parametrize("kind", in_depth(["sqlite_queue", "workflow_steps"], quick=["sqlite_queue"]))
def test_two_consoles_on_one_selection_and_four_workers(kind: str) -> None:
    total = rivals.Rivals()
    rivals.trial(kind, 200, SEED, total)
    assert total.ok, (SEED, total)


@campaign
def test_two_naive_scripts_are_caught() -> None:
    total = rivals.Rivals()
    rivals.trial("sqlite_queue", 200, SEED, total, naive=True)
    assert total.twice > 0


@pytest.mark.parametrize(
    ("kind", "number", "items"), [*(("sqlite_queue", number, 2_000) for number in signals.SIGNALS), ("file_queue", signals.SIGNALS[0], 400)]
)
def test_a_signal_in_mid_override(kind: str, number: int, items: int) -> None:
    total = signals.Signalled()
    signals.trial(kind, number, items, total)  # type: ignore[arg-type]
    assert total.ok, total
    assert total.midway == 1


@pytest.mark.parametrize("kind", in_depth(["sqlite_queue", "file_queue", "postgres_analyses"], quick=["sqlite_queue"]))
def test_suspended_in_mid_override_and_settled_by_another(kind: str) -> None:
    total = suspended.Suspended()
    suspended.trial(kind, 300, SEED, total)
    assert total.ok, total
    assert total.settled == 1


@campaign
def test_a_naive_script_that_wakes_is_caught() -> None:
    total = suspended.Suspended()
    while not total.twice and total.trials < 5:
        suspended.trial("sqlite_queue", 5_000, SEED, total, naive=True)
    assert total.twice > 0


def test_tampering_is_found_and_looking_at_numbers_alone_is_not_enough() -> None:
    total = tamper.trials(22, SEED)
    assert total.ok, total
    assert total.missed_by_naive > 0


def test_a_frozen_server_is_reported_in_time_and_others_answer_meanwhile() -> None:
    total = frozen.Frozen()
    frozen.trial(total, warm=True)
    assert total.ok, total


def test_a_reader_that_only_asks_for_mode_ro_is_caught() -> None:
    assert audit.files_left_by_a_naive_reader() > 0


def test_raw_data_that_is_put_back_as_it_was_is_caught_by_the_tree_hash_alone() -> None:
    assert audit.raw_data_written_again() == (True, False)


def test_every_screen_is_opened_by_the_soak() -> None:
    modules = {module.name for module in pkgutil.iter_modules(screens.__path__)} - {"base"}
    dialogs = {"help": "help", "pick": "views", "plan": "plan", "export": "export", "arrange": "order"}
    # Only while an override runs or its canary stopped it; the base of dialogs; from within the filter bar.
    asked = {"confirm", "dialog", "filter_language"}
    assert modules - asked == {*soak.WAYS, *dialogs} - {"override_items"}  # in the module of the override
    assert set(dialogs.values()) <= soak.DIALOGS.keys()


@campaign
def test_a_soak_leaves_nothing_behind() -> None:
    total = soak.Soaked()
    soak.trial(3, 1_000, total)
    assert not total.left
    assert total.tally.ok, total.tally
    assert total.opened.keys() == soak.WAYS.keys() | soak.DIALOGS.keys()
    assert total.resizes == 3 * len(soak.SIZES)


def test_memory_that_grows_is_not_flat() -> None:
    assert soak.Soaked(memory=[50, 80, 99, 98, 100, 101, 99, 100, 102]).flat
    assert not soak.Soaked(memory=[100, 102, 104, 106, 108, 110, 112, 114, 116]).flat


def test_what_waits_is_a_part_of_the_table() -> None:
    assert set(WAITING) <= {(part, of) for part, (_, every) in PARTS.items() for of in every}


@campaign
@pytest.mark.parametrize("hangs", [False, True], ids=["closed", "hanging"])
def test_a_terminal_lost_in_mid_override(hangs: bool) -> None:
    total = signals.Signalled()
    hangup.trial(total, hangs=hangs)
    assert total.ok, total
    assert total.midway == 1


def test_the_full_table_is_of_every_system() -> None:
    assert OVERRIDES.keys() == KINDS.keys() == set(PARTS["kill"][1])
    assert sum(OVERRIDES.values()) >= 500
    assert DISCARDED.keys() == DISCARDS.keys() == set(PARTS["discard"][1])
    assert sum(DISCARDED.values()) >= 100


def test_a_part_that_ends_early_is_a_line_that_fails() -> None:
    (line,) = run_apart([("tamper", "no such way")], 2, [])
    assert not line.ok
    assert "ended early" in line.found


def test_the_summary_counts_kills_and_tells_what_failed() -> None:
    held = Summary([Line("killed", 3, "", True, items=30_000), Line("  naive", 1, "", True, items=7), Line("soak", 5, "", True)])
    assert held.ok
    counts = "1 naive variants caught; 3 kills and cuts, 30 000 items, lost 0, twice 0, unrecorded 0, in 2 min\n"
    assert held.text(120) == f"all 2 promises held, {counts}"
    broken = Summary([*held.lines, Line("killed", 1, "", False)])
    assert not broken.ok
    assert broken.text(120).startswith("1 of 4 lines FAILED, ")
