"""The demo's folder: private, and with a marker that lists every file the demo made.

A folder is a demo only if its marker says so, names this very folder and belongs to this user. Only listed files are
ever removed. Any other file in the folder is an error, and then nothing is removed at all. A file's name is in the
marker before the file exists, so a killed build can be removed too.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from console.core.faults import UsageFault

MARKER, LOCK, SERVER_LOCK = "demo.jsonl", "demo.lock", "redis.lock"
_LOCKS = (LOCK, SERVER_LOCK)
REDIS_DATA = "appendonly.aof"
_MADE_BY = "retriage demo"
_SQLITE = ("-wal", "-shm", "-journal")
_LEFTOVER = re.compile(r"\.?(.+)\.[0-9a-f]{12}\.(?:retriage|retriage-new|tmp)")
"""A file that a killed worker of the task files was about to rename."""
_REDIS_LEFTOVER = re.compile(r"temp-rewriteaof-[0-9]+\.aof")
"""A file that a killed Redis was about to rename when it made its own files."""
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHOOSE = "Choose a new or empty --dir."


class DemoFolder:
    """An open folder of the demo; everything is created and removed below its descriptor. Closed with `stack`."""

    def __init__(self, path: Path, stack: ExitStack, *, create: bool) -> None:
        self.path = path
        _require_plain(path)
        _require_safe_parents(path)
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = _open_own(path)
        stack.callback(os.close, self._fd)
        self._marker: int | None = None
        stack.callback(self._close_marker)
        if create:
            self._require_demo_or_empty()
            os.fchmod(self._fd, 0o700)

    # -- looking at it ---------------------------------------------------------------------------

    def about(self) -> dict[str, Any] | None:
        """What the marker says about the demo; None if this folder is not a demo."""
        head, names = self._read_marker()
        if head is None:
            return None
        end = next((line for line in names if isinstance(line, dict)), None)
        return {**head, **(end or {}), "ready": end is not None}

    def lock(self, stack: ExitStack) -> bool:
        """Lock the demo; False when another process has it. The lock ends with this process, however that ends."""
        file = self.open_lock(LOCK)
        stack.callback(os.close, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def open_lock(self, name: str) -> int:
        """A descriptor of one of the files that are only there to be locked."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _read_marker(self) -> tuple[dict[str, Any] | None, list[Any]]:
        """Its first line and the others. A marker of another folder, user or program counts as none."""
        try:
            with os.fdopen(self._open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return None, []
                head, *names = list(_whole_lines(file.read()))
        except (OSError, ValueError):
            return None, []
        ours = isinstance(head, dict) and head.get("made_by") == _MADE_BY and head.get("folder") == self._number()
        return (head, names) if ours else (None, [])

    def _number(self) -> int:
        return os.fstat(self._fd).st_ino

    def _require_demo_or_empty(self) -> None:
        others = [name for name in _names(self._fd) if name not in _LOCKS]
        if others and self.about() is None:
            raise _stranger(self.path, min(others))

    # -- building --------------------------------------------------------------------------------

    def begin(self, about: Mapping[str, Any]) -> None:
        """Start a new demo in the empty folder."""
        self._marker = self._open(MARKER, _NEW_FILE | os.O_APPEND)
        self._note({"made_by": _MADE_BY, "folder": self._number(), **about})

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Mark the demo as complete, with what turned out while it was built."""
        self._note(dict(facts))
        self._close_marker()

    def file(self, name: str) -> Path:
        """Create an empty private file and return its path."""
        self.expect(name)
        os.close(self._open(name, _NEW_FILE))
        return self.path / name

    def write(self, name: str, text: str) -> None:
        """Create a private file with this text."""
        self.expect(name)
        with os.fdopen(self._open(name, _NEW_FILE), "w") as file:
            file.write(text)

    def make_folder(self, name: str) -> Path:
        self.expect(f"{name}/")
        os.mkdir(name, 0o700, dir_fd=self._fd)
        return self.path / name

    def expect(self, *names: str) -> None:
        """Note files that the demo's systems may make later. They are removed with the demo."""
        for name in names:
            self._note(name)

    def _note(self, line: object) -> None:
        assert self._marker is not None
        os.write(self._marker, json.dumps(line).encode() + b"\n")

    def _close_marker(self) -> None:
        if self._marker is not None:
            os.close(self._marker)
            self._marker = None

    def _open(self, name: str, flags: int) -> int:
        try:
            return os.open(name, flags, 0o600, dir_fd=self._fd)
        except FileExistsError:
            raise _stranger(self.path, name) from None

    # -- removing --------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove the demo, the marker last. Raises UsageFault, and removes nothing, if other files are there."""
        self._require_demo_or_empty()
        _, names = self._read_marker()
        listed = {name for name in names if isinstance(name, str)}
        found = list(self._entries(self._fd, ""))
        for name in found:
            if name not in (*_LOCKS, MARKER) and not _is_listed(name, listed):
                raise _stranger(self.path, name)
        for name in sorted(found, key=lambda name: name == MARKER):
            if name not in _LOCKS:
                self._remove(name)

    def _entries(self, folder: int, prefix: str) -> Iterator[str]:
        """The names of all files, then of their folders with a slash at the end. Links are not followed."""
        for name in _names(folder):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                yield prefix + name
                continue
            below = os.open(name, _DIRECTORY, dir_fd=folder)
            try:
                yield from self._entries(below, f"{prefix}{name}/")
            finally:
                os.close(below)
            yield f"{prefix}{name}/"

    def _remove(self, name: str) -> None:
        """Remove one file or empty folder, without following a link in any part of its name."""
        *folders, last = name.rstrip("/").split("/")
        with ExitStack() as stack:
            at = self._fd
            for folder in folders:
                at = os.open(folder, _DIRECTORY, dir_fd=at)
                stack.callback(os.close, at)
            os.rmdir(last, dir_fd=at) if name.endswith("/") else os.unlink(last, dir_fd=at)


def _names(folder: int) -> list[str]:
    """What a folder contains, by its descriptor, so that no link is followed."""
    return os.listdir(folder)


def _whole_lines(text: str) -> Iterator[Any]:
    """The lines of a marker. A kill may have left half a line at the end; its file was not made yet."""
    for line in text.split("\n")[:-1]:
        yield json.loads(line)


def _is_listed(name: str, listed: set[str]) -> bool:
    if name in listed or f"{name}/" in listed:  # a link in place of a folder is removed as the link it is
        return True
    for suffix in _SQLITE:
        if name.endswith(suffix) and name.removesuffix(suffix) in listed:
            return True
    folder, slash, last = name.rpartition("/")
    if _REDIS_LEFTOVER.fullmatch(last):
        return f"{folder}{slash}{REDIS_DATA}" in listed
    leftover = _LEFTOVER.fullmatch(last)
    if leftover is None:
        return False
    of = f"{folder}{slash}{leftover[1]}"
    return of in listed or any(f"{of}{extension}" in listed for extension in (".task", ".result"))


def _stranger(path: Path, name: str) -> UsageFault:
    return UsageFault(f"{path} contains {name!r}, which this demo did not make", fix=_CHOOSE)


def _open_own(path: Path) -> int:
    try:
        fd = os.open(path, _DIRECTORY)
    except NotADirectoryError:
        raise UsageFault(f"{path} is not a folder, or is a link to one", fix="Choose another --dir.") from None
    if os.fstat(fd).st_uid != os.geteuid():
        os.close(fd)
        raise UsageFault(f"{path} belongs to another user", fix="Choose a --dir in your home folder.")
    return fd


def _require_plain(path: Path) -> None:
    if any(char in str(path) for char in '?#%"\\') or not str(path).isprintable():
        raise UsageFault(f"'{path}' cannot be part of a database URL", fix="Choose a --dir without special characters.")


def _require_safe_parents(path: Path) -> None:
    """Refuse a place where another user could put a folder or a link of their own in place of the demo's."""
    real = path.parent.resolve()
    for chain in (path.parents, [real, *real.parents]):
        ours_alone = False  # whether a folder further up lets nobody else through
        for parent in reversed(chain):
            try:
                found = parent.lstat()
            except FileNotFoundError:
                continue
            _require_safe(parent, found, ours_alone)
            ours_alone |= found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def _require_safe(parent: Path, found: os.stat_result, ours_alone: bool) -> None:
    if found.st_uid not in (os.geteuid(), Path("/").stat().st_uid):
        raise UsageFault(f"{parent} belongs to another user", fix="Choose a --dir in your home folder.")
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        raise UsageFault(f"Everybody can rename folders in {parent}", fix="Choose a --dir in your home folder.")
    if found.st_mode & stat.S_IWGRP and not (ours_alone or _is_private(found.st_gid)):
        raise UsageFault(f"A group can rename folders in {parent}", fix="Choose a --dir that only you can get to.")


def _is_private(group: int) -> bool:
    """Whether a group has no members but us, by the custom of Linux: it has our name. That of root counts too."""
    if group == 0:
        return True
    try:
        return group == os.getegid() and grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
