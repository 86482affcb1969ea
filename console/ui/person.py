"""Who sits here and where, as far as the system knows."""

from __future__ import annotations

import os
import pwd
import socket
import sys

from console import __version__
from console.core.plan import Whence, Who


def who(claimed: str) -> Who:
    uid = os.getuid()
    try:
        login = pwd.getpwuid(uid).pw_name
    except KeyError:
        login = str(uid)
    return Who(uid, login, claimed)


def whence() -> Whence:
    try:
        tty = os.ttyname(sys.stdin.fileno())
    except (OSError, ValueError):
        tty = ""
    return Whence(
        socket.gethostname(), tty, os.environ.get("SSH_CONNECTION", "").partition(" ")[0], os.getpid(), __version__
    )
