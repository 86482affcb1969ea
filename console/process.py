"""The process itself: its clock, the signals that ask it to end, and what it leaves behind when it crashes."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from console.core.person import Whence, Who


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def who(claimed: str) -> Who:
    """Who the system says is at the keyboard, beside what they call themselves."""
    uid = os.getuid()
    try:
        login = pwd.getpwuid(uid).pw_name
    except KeyError:
        login = str(uid)
    return Who(uid, login, claimed)


def whence(version: str) -> Whence:
    """Where they sit."""
    try:
        tty = os.ttyname(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):
        tty = ""
    peer = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    return Whence(socket.gethostname(), tty, peer, os.getpid(), version)


class Signals:
    """A Stop that SIGINT, SIGTERM and SIGHUP request once they are listened to.

    The first one asks for an end after the current step; SIGINT again insists.
    """

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


def write_crash_file(error: BaseException, about: str) -> Path | None:
    """The traceback without locals and with secrets masked, for its owner only; None when there is no place."""
    from console.places import state_folder
    from console.settings import mask_text

    folder = state_folder() / "crashes"
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.txt"
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{about}\nPython {python} on {sys.platform}\n\n{''.join(traceback.format_exception(error))}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(mask_text(text))
    except OSError:
        return None
    return path
