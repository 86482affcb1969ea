"""Promise: a backfill that is killed at any point inserts each missing partition once, and all of it is on record."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.partitions import Pipeline, day
from tests.cli.place import Place, environment
from tests.depth import in_depth

POINTS = ("before_intent", "after_intent", "before_write", "after_write", "before_outcome", "after_outcome", "before_state", "after_state")
RUN = "import sys, tests.faultpoint; from console.__main__ import main; sys.exit(main(sys.argv[1:]))"
BACKFILL = ("state", "backfill", "--source", "ads", "--customer-id", "c9", "--query-name", "spend", "--since", day(9), "--reason", "gaps", "--confirm", "10")


@pytest.mark.parametrize("point", in_depth(POINTS, quick=["before_write", "after_write", "before_outcome"]))
def test_a_backfill_killed_at_any_point_is_completed_once(place: Place, point: str) -> None:
    pipeline = Pipeline(place)
    killed = subprocess.run(
        [sys.executable, "-c", RUN, "--config", str(place.write_config()), *BACKFILL],
        env=environment(place.folder) | {"RETRIAGE_FAULT_POINT": point}, capture_output=True, text=True, check=False,
    )
    assert killed.returncode == -9, killed.stderr
    override = place.run("overrides", "list").out.split('"override_id": "')[1].split('"')[0]
    resumed = place.run("overrides", "resume", override)
    assert resumed.code == (3 if point == "after_state" else 0), resumed.err
    days = [row[0] for row in pipeline.sql("SELECT logical_date FROM partition_state ORDER BY 1")]
    assert days == [day(ago) for ago in range(9, -1, -1)]
    assert '"applied": 10' in place.run("overrides", "list").out
    assert place.run("trail", "verify").code == 0
