"""Who is at the keyboard, and from where: what a confirmation binds and every record names."""

from __future__ import annotations

from typing import NamedTuple


class Who(NamedTuple):
    """The person at the keyboard: what the system knows, and what they say of themselves, marked as a claim."""

    uid: int
    login: str
    claimed: str = ""

    def __str__(self) -> str:
        return f"{self.login} (says {self.claimed})" if self.claimed and self.claimed != self.login else self.login


class Whence(NamedTuple):
    """Where they sit."""

    host: str
    tty: str
    ssh_peer: str
    pid: int
    version: str
