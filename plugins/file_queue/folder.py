"""The queue's folders: what file names mean, and the few ways a file is read or written.

Every path is a plain name below a folder that was opened without following a symlink, so whatever a name or
a link says, nothing outside the folders is ever read or written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from console.core.faults import BackendFault, Unreachable

LARGEST_FILE = 16 * 2**20
_LONGEST_NAME = 200
"""In bytes: what a private name adds must still fit into a file name."""


class State(StrEnum):
    """What a task file's name says."""

    TASK = "task"
    RUNNING = "running"
    DONE = "done"


_TASK_FILE = re.compile(r"(?s)(.+)\.(task|running|done)")
_PRIVATE = re.compile(r"(?s)(.+)\.(task|running|done)\.([0-9a-f]{12})\.retriage")
_NEW = re.compile(r"(?s)(.+)\.([0-9a-f]{12})\.retriage-new")
RESULT = ".result"


class Named(NamedTuple):
    """One file name of the queue folder, taken apart. `token` is set on a file that is being moved."""

    id: str
    state: State | None
    token: str = ""


def parse(name: str) -> Named:
    """What a name means; a name without a state belongs to no task we know of."""
    if found := _TASK_FILE.fullmatch(name):
        return Named(found[1], State(found[2]))
    if found := _PRIVATE.fullmatch(name):
        return Named(found[1], State(found[2]), found[3])
    if found := _NEW.fullmatch(name):
        return Named(found[1], None, found[2])
    return Named(name, None)


def file_name(id: str, state: State) -> str:
    return f"{id}.{state}"


def private_name(id: str, state: State, token: str) -> str:
    return f"{id}.{state}.{token}.retriage"


def new_name(id: str, token: str) -> str:
    return f"{id}.{token}.retriage-new"


def new_token() -> str:
    return secrets.token_hex(6)


def why_not_plain(id: str) -> str | None:
    """Why an id is not one a file may be named by, if it is not."""
    if id in ("", ".", "..") or "/" in id or "\0" in id:
        return "its id is not a plain file name"
    if not id.isprintable() or id.startswith("."):
        return "its name holds characters no id has"
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return "its name is too long to be moved safely" if size > _LONGEST_NAME else None


class Unusable(Exception):
    """A file that cannot be read as what it should be; the text says why."""


class Stamp(NamedTuple):
    """What tells that a file is still the one that was read."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Folder:
    """One folder by its descriptor; a context manager, because descriptors are few."""

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Unreachable(_why_no_folder(error), where=str(path), fix="Check the path in the config.") from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, name: str) -> bytes:
        """A regular file's content, never through a link, never a device that would hang."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unusable(_why_unusable(error)) from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise Unusable(f"is {_kind(found.st_mode)}, not a file")
            if found.st_size > LARGEST_FILE:
                raise Unusable(f"is larger than {LARGEST_FILE // 2**20} MiB and was not read")
            return _all_of(fd, found.st_size)
        except OSError as error:
            raise Unusable(_why_unusable(error)) from None
        finally:
            os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # then there is no such file
                return None
            raise

    def names(self) -> list[str]:
        return os.listdir(self.fd)  # noqa: PTH208  by descriptor, so that no symlink is followed

    def create(self, name: str, content: bytes, like: os.stat_result | None = None) -> None:
        """A new file with this content, durable before it returns; `like` another in owner and permissions."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self.fd)
        try:
            if like is not None:
                _give(fd, like)
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def link(self, old: str, new: str) -> None:
        """A second name; FileExistsError when that name is taken."""
        os.link(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def replace_content(self, name: str, content: bytes, temporary: str) -> None:
        """Temp file, fsync, rename: a reader sees the old content or the new, never a part."""
        self.create(temporary, content)
        try:
            self.rename(temporary, name)
        except OSError:
            self.remove(temporary)
            raise

    def sync(self) -> None:
        os.fsync(self.fd)

    @contextmanager
    def locked(self, *, alone: bool = False) -> Iterator[bool]:
        """Whoever moves a file holds this lock together with the other movers; whoever clears up after a
        crash holds it alone, and so knows that what lies about is nobody's any more. It ends with its process.
        Yields whether the lock was had."""
        mode = fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            try:
                fcntl.flock(fd, mode)
            except BlockingIOError:
                yield False
                return
            except OSError as error:
                raise BackendFault(f"the folder cannot be locked: {error.strerror}") from None
            yield True
        finally:
            os.close(fd)


def _all_of(fd: int, expected: int) -> bytes:
    content = os.read(fd, expected + 1)
    if len(content) == expected:
        return content
    pieces, size = [content], len(content)
    while (piece := os.read(fd, 2**20)) and size <= LARGEST_FILE:
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def _give(fd: int, like: os.stat_result) -> None:
    """The workers may be another user: a file they cannot read would be lost to them."""
    mine = os.fstat(fd)
    os.fchmod(fd, stat.S_IMODE(like.st_mode))
    if (mine.st_uid, mine.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(fd, like.st_uid, like.st_gid)
    except PermissionError:
        if not like.st_mode & stat.S_IROTH:
            raise PermissionError(errno.EPERM, "the file's owner could not read what this user would write") from None


def _why_unusable(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return "is a symlink, which is never followed"
    return f"cannot be read: {error.strerror or error}"


def _why_no_folder(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "there is no such folder"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "it is not a folder, or a symlink, which is not followed"
    return error.strerror or str(error)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
