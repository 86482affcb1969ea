"""Values of many megabytes in any column need no more memory than short ones, and never stop a list or a plan."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from tests.cli.place import Place, environment, failed
from tests.depth import in_depth

ROWS, MEGABYTES = 8, 16
COLUMNS = ("task_type", "entity_id", "attempts", "last_error", "created_at", "updated_at")
"""Without next_run_at: a list in its order compares whole values, so it reads them."""
GUARDED = ("attempts", "created_at", "updated_at")
"""What a requeue compares and sets."""

MEASURED = """
import sys
from console.__main__ import main
code = main(sys.argv[1:])
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024, file=sys.stderr)
sys.exit(code)
"""


def measured(place: Place, *arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """The command in a process of its own, and the megabytes it needed."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "--config", str(place.write_config()), *arguments],
        env=environment(place.folder), capture_output=True, text=True, check=False,
    )
    return done, int(done.stderr.split()[-1])


@pytest.mark.parametrize("column", in_depth(COLUMNS, quick=["task_type", "updated_at"]))
def test_a_list_and_a_plan_of_huge_values_stay_small(place: Place, column: str) -> None:
    place.deadline = "60s"
    path = place.queue("q", *(failed(f"{n}") for n in range(ROWS)))
    with sqlite3.connect(path) as connection:
        size = MEGABYTES * 500_000
        connection.execute(f"UPDATE async_tasks SET {column} = '2026-01-01' || hex(zeroblob({size}))")
        connection.execute("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", failed("small"))
    connection.close()
    listed, for_list = measured(place, "list", "--where", "condition:*", "--format", "jsonl")
    assert len(listed.stdout.splitlines()) == ROWS + 1, listed.stderr
    assert len(listed.stdout) < 200_000
    planned, for_plan = measured(place, "plan", "--where", "condition:*", "--attempts", "reset", "--all", "--items", "--format", "json")
    plan = json.loads(planned.stdout)
    assert plan["selected"] == ROWS + 1
    too_large = [reason for reason in plan["skipped"] if "larger than 64 kB" in reason]
    assert bool(too_large) == (column in GUARDED), plan["skipped"]
    ignored = column in GUARDED or column == "task_type"  # its worker takes only the configured types
    assert plan["changes"] == (1 if ignored else ROWS + 1)
    assert max(for_list, for_plan) < 120 + 4 * MEGABYTES
