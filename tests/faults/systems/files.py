"""The folder of task files, with a watcher as its oracle. These tasks have no retry of their own left, so a `.task`
file that appears was requeued."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from console.core.policy import PolicyOverride
from plugins.file_queue import FileQueue
from plugins.file_queue.backend import Options
from tests.faults.systems import System

ROOT = Path(__file__).parents[3]


class FileTasks(System):
    name = "files"

    @property
    def queue(self) -> Path:
        return self.folder / "base" / "queue"

    def create(self, items: int) -> list[str]:
        for name in ("base/queue", "base/results", "marks", "before"):
            (self.folder / name).mkdir(parents=True)
        began = datetime.now(UTC) - timedelta(hours=1)
        for n in range(items):
            at = (began + timedelta(microseconds=n + 1)).isoformat()
            fields = {"id": f"t{n:06d}", "func_path": "jobs.send", "args": [n], "kwargs": {}, "status": "FAILED", "schedule": {"eta": at},
                      "max_retries": 3, "timeout": None, "attempts": 3, "created_at": at, "updated_at": at, "last_attempt_at": at}
            (self.queue / f"t{n:06d}.done").write_text(json.dumps(fields))
        self._watch()
        self.forget()
        return sorted(self.present())

    def _watch(self) -> None:
        watcher = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.systems.watcher", str(self.folder / "log"), str(self.queue), str(self.folder / "marks")],
            cwd=ROOT, stdout=subprocess.PIPE,
        )
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == b"watching\n"
        watcher.stdout.close()
        watcher.returncode = 0  # it is ended by its id, by whichever process comes last
        (self.folder / "watcher").write_text(str(watcher.pid))

    def open(self, deadline: timedelta = timedelta(seconds=30)) -> FileQueue:
        options = Options(path=str(self.folder / "base"))
        return FileQueue.open(self.name, options, PolicyOverride(), read_only=False, deadline=deadline)

    def present(self) -> set[str]:
        """Whole: exactly one file, which can be read. What a crash left half moved is settled by whoever comes next."""
        found = Counter(path.stem for path in self.queue.iterdir() if path.suffix in (".task", ".running", ".done"))
        return {id for id, times in found.items() if times == 1}

    def _appeared(self) -> list[str]:
        """Every name noted so far; the watcher is known to have come this far by a mark of ours."""
        mark = f"mark-{time.monotonic_ns()}"
        (self.folder / "marks" / mark).touch()
        for _ in range(3_000):
            seen = (self.folder / "log").read_text().splitlines()
            assert "OVERFLOWN" not in seen, "the watcher could not keep up"
            if mark in seen:
                return seen
            time.sleep(0.01)
        raise AssertionError("the watcher says nothing")

    def requeued(self) -> Counter[str]:
        first = int((self.folder / "seen").read_text())
        return Counter(name.removesuffix(".task") for name in self._appeared()[first:] if name.endswith(".task"))

    def _contents(self) -> dict[str, str]:
        """Files may be handed on while they are read: one that is gone again has no content."""
        found: dict[str, str] = {}
        for path in self.queue.iterdir():
            with suppress(FileNotFoundError):
                found[path.name] = path.read_text()
        return found

    def touched(self) -> set[str]:
        before, now = json.loads((self.folder / "before.json").read_text()), self._contents()
        return {name.split(".")[0] for name in before.keys() | now.keys() if before.get(name) != now.get(name)}

    def forget(self) -> None:
        (self.folder / "seen").write_text(str(len(self._appeared())))
        (self.folder / "before.json").write_text(json.dumps(self._contents()))

    def taken(self) -> bool:
        return any(name.endswith(".running") for name in self._appeared())

    def mutate(self, ids: list[str], chance: random.Random) -> None:
        for id in ids:
            path = self.queue / f"{id}.done"
            fields = json.loads(path.read_text())
            kind = chance.randrange(6)
            if kind < 3:
                changed = ({"attempts": 2}, {"updated_at": datetime.now(UTC).isoformat()}, {"status": "SUCCESS"})[kind]
                path.write_text(json.dumps({**fields, **changed}))
            elif kind == 3:
                path.rename(self.queue / f"{id}.running")
            elif kind == 4:
                path.unlink()
            else:
                path.rename(self.queue / f"{id}-moved.done")

    def delete(self, ids: list[str]) -> None:
        for id in ids:
            (self.queue / f"{id}.task").unlink()

    def take_back(self, ids: list[str]) -> None:
        for id in ids:
            path = self.queue / f"{id}.task"
            path.write_text(json.dumps({**json.loads(path.read_text()), "status": "FAILED", "updated_at": datetime.now(UTC).isoformat()}))
            path.rename(path.with_suffix(".done"))

    def naive(self, chunk: int = 100) -> bool:
        done = []
        for path in self.queue.iterdir():
            with suppress(OSError, ValueError):
                if path.suffix == ".done" and (fields := json.loads(path.read_text()))["status"] == "FAILED":
                    path.write_text(json.dumps({**fields, "status": "PENDING"}))
                    path.rename(path.with_suffix(".task"))
                    done.append(path.stem)
            if len(done) == chunk:
                break
        with (self.folder / "notes").open("a") as notes:
            notes.write("".join(f"{id}\n" for id in done))
        return bool(done)

    def notes(self) -> Counter[str]:
        with suppress(FileNotFoundError):
            return Counter((self.folder / "notes").read_text().split())
        return Counter()

    def drop(self) -> None:
        watcher = int((self.folder / "watcher").read_text())
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(watcher, signal.SIGTERM)
            os.waitpid(watcher, 0)
