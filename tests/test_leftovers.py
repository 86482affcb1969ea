"""Processes that outlive their test are found and ended."""

from __future__ import annotations

import os
import subprocess

from tests import leftovers

SLEEP = ["sleep", "600"]


def test_a_child_and_its_child_are_found_and_killed() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"]) as child:
        while len(found := leftovers.descendants() - {child.pid}) < 1:
            assert child.poll() is None
        assert child.pid in leftovers.descendants()
        killed = leftovers.end({child.pid, *found}, patience=0)
    assert len(killed) == len(found) + 1
    assert any("sleep 600" in command for command in killed)


def test_a_process_that_may_stay_is_left_alone() -> None:
    with subprocess.Popen(SLEEP) as child:
        with leftovers.kept(child.pid):
            assert child.pid not in leftovers.descendants()
        assert child.pid in leftovers.descendants()
        child.kill()


def test_a_process_without_its_parent_is_found_by_the_mark_of_its_run() -> None:
    run = f"of-this-test-{os.getpid()}"
    started = subprocess.run(
        ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"], env={**os.environ, leftovers.RUN: run}, capture_output=True, text=True,
        check=True,
    )
    orphan = int(started.stdout)
    assert leftovers.marked(run) == {orphan}
    assert leftovers.end([orphan], patience=0) == ["sleep 600 "]
    assert leftovers.end([orphan], patience=60) == []


def test_what_ends_by_itself_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "0.1"]) as child:
        assert leftovers.end([child.pid], patience=60) == []
