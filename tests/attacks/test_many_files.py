"""A folder with very many files: the deadline applies, what was read by then is kept, and memory stays bounded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import PageRequest
from console.core.faults import DeadlineExceeded
from console.testing import ALL, NOON
from tests.cli.place import Place, environment
from tests.depth import campaign
from tests.plugins.file_queue import folders
from tests.plugins.file_queue.test_index import opened, settle

MANY = 1_000_000
PEAK = "import sys; from console.__main__ import main; code = main(sys.argv[1:]); print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) // 1024, file=sys.stderr); sys.exit(code)"


def test_the_deadline_ends_a_read_and_the_next_one_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders.make(tmp_path / "jobs")
    for n in range(2_000):
        folders.write_task(base, f"t{n}")
    settle()
    ticks = iter(range(10**9))
    monkeypatch.setattr("plugins.file_queue.index.monotonic", lambda: next(ticks))  # a second between two looks at the clock
    backend = folders.open_queue(base, deadline=timedelta(seconds=12))
    faults = []
    with opened(monkeypatch) as read:
        for _ in range(10):
            try:
                page = backend.page(PageRequest(ALL, NOON, limit=2_000))
                break
            except DeadlineExceeded as fault:
                faults.append(fault)
    assert len(page.items) == 2_000
    assert faults, "2 000 files need more than 12 looks at the clock"
    assert "of 2000 files were read in 12s" in str(faults[0])
    assert len(read) == len(set(read)) == 2_000, "no file was read twice"


def test_a_command_ends_at_the_deadline_and_says_what_to_do(place: Place) -> None:
    base = folders.make(place.folder / "jobs")
    for n in range(600):
        folders.write_task(base, f"t{n}")
    place.sections["files"] = f"  files: {{plugin: file_queue, path: {base}}}\n"
    place.deadline = "1ms"
    done = place.run("list")
    assert done.code == 4
    assert "files were" in done.err
    assert "aise `deadline` in the config" in done.err


def test_the_next_command_opens_only_what_changed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    base = folders.make(place.folder / "jobs")
    for n in range(1_200):
        folders.write_task(base, f"t{n}", "SUCCESS" if n % 100 else "FAILED")
    time.sleep(2.1)  # what was read sooner after a change is not kept
    place.deadline = "10m"
    kept = place.folder / ".cache" / "retriage"
    section = f"  files: {{plugin: file_queue, path: {base}"
    place.sections["files"] = section + ", read_only: true}\n"
    place.run("list")
    place.sections["files"] = section + "}\n"
    first = place.run("--read-only", "list")
    assert len(first.out.splitlines()) == 12, first.err
    assert not kept.exists(), "read-only writes nothing"
    assert place.run("list").out == first.out
    assert len(list(kept.glob("file_queue/*"))) == 1
    folders.write_task(base, "t1")
    (base / "queue" / "t100.done").unlink()
    with opened(monkeypatch) as read:
        third = place.run("list")
    assert set(read) == {"t1.done"}  # once or more: a file that changed a moment ago is read again each time
    assert ('"t1"' in third.out, '"t100"' in third.out) == (True, False)


@campaign
@pytest.mark.timeout(1_800)  # to make them takes minutes, more on a busy machine
def test_a_million_files(place: Place) -> None:
    base = folders.make(place.folder / "jobs")
    done = {name: value for name, value in folders.fields("", "SUCCESS").items() if name != "id"}
    first = base / "queue" / "0.done"
    for n in range(MANY):
        path = base / "queue" / f"{n}.done"
        if n % 1_000 == 0:
            folders.write_task(base, str(n), "FAILED")
        elif n % 1_000 == 1:
            path.write_text(json.dumps(done))
            first = path
        else:
            path.hardlink_to(first)
    place.sections["files"] = f"  files: {{plugin: file_queue, path: {base}}}\n"
    place.deadline = "1s"
    assert "aise `deadline` in the config" in place.run("list").err
    place.deadline = "10m"
    whole = subprocess.run(
        [sys.executable, "-c", PEAK, "--config", str(place.write_config()), "list", "--where", "condition:terminal", "--limit", "0"],
        env=environment(place.folder), capture_output=True, text=True, check=False,
    )
    assert len(whole.stdout.splitlines()) == MANY // 1_000, whole.stderr
    assert int(whole.stderr.split()[-1]) < 3_000, "megabytes"
