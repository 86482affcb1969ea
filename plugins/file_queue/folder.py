"""The queue's folders: the meaning of file names, and safe reads and writes of single files.

A file is always opened by a plain name relative to a folder descriptor, and symlinks are not followed. Nothing outside
the folders can be read or written, whatever a name or a link contains.
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
"""In bytes. It leaves room for the suffix of a private name."""


class State(StrEnum):
    """The state of a task, which is the extension of its file."""

    TASK = "task"
    RUNNING = "running"
    DONE = "done"


STATES = {str(state): state for state in State}
_PRIVATE = re.compile(r"(?s)(.+)\.(task|running|done)\.([0-9a-f]{12})\.retriage")
_NEW = re.compile(r"(?s)(.+)\.([0-9a-f]{12})\.retriage-new")
RESULT = ".result"


class ParsedName(NamedTuple):
    """The parts of a file name in the queue folder. A file that is being moved has a token."""

    id: str
    state: State | None
    token: str = ""


def parse_name(name: str) -> ParsedName:
    """Parse a file name. Without a state it is not a task file."""
    id, _, extension = name.rpartition(".")
    if id and (state := STATES.get(extension)) is not None:
        return ParsedName(id, state)
    if found := _PRIVATE.fullmatch(name):
        return ParsedName(found[1], STATES[found[2]], found[3])
    if found := _NEW.fullmatch(name):
        return ParsedName(found[1], None, found[2])
    return ParsedName(name, None)


def file_name(id: str, state: State) -> str:
    return f"{id}.{state}"


def private_name(id: str, state: State, token: str) -> str:
    return f"{id}.{state}.{token}.retriage"


def new_name(id: str, token: str) -> str:
    return f"{id}.{token}.retriage-new"


def new_token() -> str:
    return secrets.token_hex(6)


def why_not_plain(id: str) -> str | None:
    """Return why this id cannot be used as a file name, or None if it can."""
    if id in ("", ".", "..") or "/" in id or "\0" in id:
        return "its id is not a plain file name"
    if not id.replace("\t", "").isprintable() or id.startswith("."):
        return "its name contains characters that are not allowed in an id"
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return "its name is too long to be moved safely" if size > _LONGEST_NAME else None


class UnreadableFile(Exception):
    """A file has no usable content. The message starts with a verb: "is empty"."""


class Stamp(NamedTuple):
    """Identifies one version of a file: any change to the file changes its stamp."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Folder:
    """An open folder. Use it as a context manager, so that its descriptor is closed."""

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
        """Read a regular file. Symlinks are not followed, and devices and pipes are refused because they may block."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableFile(_why_unreadable(error)) from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise UnreadableFile(f"is {_kind(found.st_mode)}, not a file")
            if found.st_size > LARGEST_FILE:
                raise UnreadableFile(f"is larger than {LARGEST_FILE // 2**20} MiB and was not read")
            return _all_of(fd, found.st_size)
        except OSError as error:
            raise UnreadableFile(_why_unreadable(error)) from None
        finally:
            os.close(fd)

    def stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # such a file cannot exist
                return None
            raise

    def names(self) -> list[str]:
        return os.listdir(self.fd)  # noqa: PTH208  by descriptor, so that no symlink is followed

    def create(self, name: str, content: bytes, like: os.stat_result | None = None) -> None:
        """Create a file and sync it to disk; `like` gives its owner and permissions."""
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self.fd)
        try:
            if like is not None:
                _copy_ownership(fd, like)
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises FileExistsError if the name is taken."""
        os.link(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def replace_content(self, name: str, content: bytes, temporary: str) -> None:
        """Write a temporary file and rename it, so that a reader sees either the old or the new content."""
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
        """Hold the folder's lock; yields whether it was obtained. It is released when the process ends.

        Moves share the lock. Recovery takes it exclusively, so it knows that no move is still in progress.
        """
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


def _copy_ownership(fd: int, like: os.stat_result) -> None:
    """Keep the old file's owner and mode: workers that run as another user must be able to read the new file."""
    mine = os.fstat(fd)
    os.fchmod(fd, stat.S_IMODE(like.st_mode))
    if (mine.st_uid, mine.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(fd, like.st_uid, like.st_gid)
    except PermissionError:
        if not like.st_mode & stat.S_IROTH:
            raise PermissionError(errno.EPERM, "the file's owner could not read the new file") from None


def _why_unreadable(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return "is a symlink; symlinks are not followed"
    return f"cannot be read: {error.strerror or error}"


def _why_no_folder(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "no such folder"
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "not a folder, or a symlink; symlinks are not followed"
    return error.strerror or str(error)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
