"""The index of one folder as a file, so that the next process need not open every task file again.

It is a private file of this user. Each line has its own checksum: a line that is damaged, or cut off because the disk
was full, is left out, and what is left out is read from the task files again. A file that is foreign, too large or of
another folder is ignored. The first line says which folder the others are about.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from plugins.file_queue.folder import Folder

LARGEST = 256 * 2**20
"""In bytes. What does not fit is read from the task files by every process."""
_FORMAT = 1
"""Another number when what is kept gets another meaning: the older files are then ignored."""
_PER_LINE = 500
_SUFFIX, _NEW = ".index", ".new"
_UNUSED = 30 * 86_400
"""Seconds without a write after which an index is removed. At worst it has to be built again."""
_ABANDONED = 3_600
"""Seconds after which a file that a killed process was writing is removed."""
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class IndexFile:
    """Where the index of a queue is kept."""

    def __init__(self, folder: Path, queue: Path) -> None:
        self._folder = folder
        self._queue = queue
        self._name = hashlib.sha256(os.fsencode(queue)).hexdigest()[:32] + _SUFFIX

    def load(self, folders: tuple[Folder, Folder]) -> Iterator[Any]:
        """What was kept of these two folders, as `save` got it. Raises nothing; what cannot be read is left out."""
        with suppress(OSError, ValueError, RecursionError), _private(self._folder) as place:
            fd = os.open(self._name, os.O_RDONLY | _FLAGS, dir_fd=place)
            with os.fdopen(fd, "rb") as file:
                if not _is_private(os.fstat(fd), stat.S_IFREG) or os.fstat(fd).st_size > LARGEST:
                    return
                if _parsed(file.readline()) != self._header(folders):
                    return
                for line in file:
                    with suppress(ValueError, RecursionError):
                        yield from _parsed(line)

    def save(self, folders: tuple[Folder, Folder], entries: Iterable[Any]) -> bool:
        """Replace what is kept; returns whether that worked. Another process sees either the old file or the new."""
        temporary = f"{self._name}.{secrets.token_hex(6)}{_NEW}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _private(self._folder) as place:
                _remove_old(place)
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=place)
                try:
                    with os.fdopen(fd, "wb") as file:
                        for line in _lines(self._header(folders), entries):
                            file.write(line)
                    os.rename(temporary, self._name, src_dir_fd=place, dst_dir_fd=place)
                except BaseException:
                    os.unlink(temporary, dir_fd=place)
                    raise
        except OSError:  # a full disk, or a place that this user may not write: then every process reads everything
            return False
        return True

    def _header(self, folders: tuple[Folder, Folder]) -> list[Any]:
        found = [os.fstat(folder.fd) for folder in folders]
        return ["file_queue index", _FORMAT, str(self._queue), [[one.st_dev, one.st_ino] for one in found]]


class _private:
    """A folder that nobody else can write or read, opened; raises OSError for any other."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not _is_private(os.fstat(self._fd), stat.S_IFDIR):
            os.close(self._fd)
            raise PermissionError(str(folder))

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _is_private(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _lines(header: list[Any], entries: Iterable[Any]) -> Iterator[bytes]:
    """The lines of the file. Lines are short, because encoding or decoding one stops every other thread."""
    line = _line(header)
    yield line
    size, left = len(line), iter(entries)
    while some := list(islice(left, _PER_LINE)):
        line = _line(some)
        size += len(line)
        if size > LARGEST:
            return
        yield line


def _line(values: list[Any]) -> bytes:
    text = json.dumps(values, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> list[Any]:
    """The values of a line; raises ValueError if it is damaged."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if int(checksum, 16) != zlib.crc32(text):
        raise ValueError("damaged")
    values = json.loads(text)
    if not isinstance(values, list):
        raise ValueError("not a list")
    return values


def _remove_old(place: int) -> None:
    """Remove what killed processes left, and the indexes of folders that nobody reads any more."""
    now = time.time()
    for name in os.listdir(place):
        limit = _ABANDONED if name.endswith(_NEW) else _UNUSED if name.endswith(_SUFFIX) else None
        with suppress(OSError):
            if limit is not None and now - os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime > limit:
                os.unlink(name, dir_fd=place)
