from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from console.core.faults import OverrideRunning
from console.trail import leases as owners
from console.trail.leases import SILENCE, alive, owner_token
from console.trail.store import TrailStore
from tests.patience import PATIENCE
from tests.trail.processes import python
from tests.trail.world import START, YES, begun


def test_this_process_is_alive_until_it_is_silent() -> None:
    token = owner_token()
    assert alive(token, START, START + SILENCE)
    assert alive(token, START + timedelta(seconds=5), START), "their clock is ahead"
    assert not alive(token, START, START + SILENCE + timedelta(seconds=1))


def test_tokens_of_one_process_differ_but_all_live() -> None:
    one, two = owner_token(), owner_token()
    assert one != two
    assert alive(one, START, START)
    assert alive(two, START, START)


@pytest.mark.parametrize("part", [0, 1])
def test_of_another_host_or_boot_only_the_heartbeat_tells(part: int) -> None:
    words = owner_token().split(" ")
    words[part] = "another"
    words[2] = "1999999999"
    assert alive(" ".join(words), START, START)


def test_a_pid_that_another_process_has_now_is_not_the_owner() -> None:
    words = owner_token().split(" ")
    words[3] = str(int(words[3]) - 1)
    assert not alive(" ".join(words), START, START)


@pytest.mark.parametrize("token", ["", "me", "a b c d e f", "host boot pid start random"])
def test_a_token_that_says_nothing_lives_by_its_heartbeat(token: str) -> None:
    assert alive(token, START, START)
    assert not alive(token, START, START + 2 * SILENCE)


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    token = owner_token().split(" ")
    stat = owners._stat(process.pid)
    assert stat is not None
    token[2], token[3] = str(process.pid), stat[1]
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(" ".join(token), START, START)
    process.wait()
    assert not alive(" ".join(token), START, START)


def test_where_proc_hides_others_a_signal_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    token = owner_token()
    gone = token.split(" ")
    gone[2] = "1999999999"
    monkeypatch.setattr(owners, "_stat", lambda pid: None)
    assert alive(token, START, START)
    assert not alive(" ".join(gone), START, START)

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert alive(" ".join(gone), START, START)


def test_without_proc_only_the_heartbeat_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_boot", lambda: "-")
    monkeypatch.setattr(owners, "_stat", lambda pid: None)
    token = owner_token()
    assert token.split(" ")[1:4] == ["-", str(os.getpid()), "-"]
    assert alive(token, START, START)


HOLD = """
trail = open_trail(sys.argv[1], read_only=False, anchor=None, clock=FrozenClock())
_, owner = begun(trail)
trail.intend("op1", owner, chunk(0, 1), START)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_owner_on_this_machine_is_taken_over_at_once(trail: TrailStore, url: str) -> None:
    process = python(HOLD, url)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(OverrideRunning):
        trail.take_over("op1", owner_token(), START, YES)
    with pytest.raises(OverrideRunning):
        begun(trail, "op2")
    assert trail.unresolved() == []
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert [intent.seq for intent in trail.unresolved()] == [3]
    trail.take_over("op1", owner_token(), START, YES)
    assert trail.records()[-1].body["previous_state"] == "running"
