"""Notes every name that appears in a folder, by inotify: `python -m tests.faults.systems.watcher LOG FOLDER…`."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

CREATED, MOVED_HERE, OVERFLOWN = 0x100, 0x80, 0x4000
HEAD = struct.Struct("iIII")


def main() -> None:
    log, folders = Path(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_CLOEXEC)
    for folder in folders:
        assert libc.inotify_add_watch(watch, os.fsencode(folder), CREATED | MOVED_HERE) >= 0, os.strerror(ctypes.get_errno())
    with log.open("ab", buffering=0) as out:
        sys.stdout.write("watching\n")
        sys.stdout.flush()
        while True:
            events, names, at = os.read(watch, 1 << 20), [], 0
            while at < len(events):
                _, mask, _, length = HEAD.unpack_from(events, at)
                name = events[at + HEAD.size : at + HEAD.size + length].rstrip(b"\0")
                names.append(b"OVERFLOWN\n" if mask & OVERFLOWN else name + b"\n")
                at += HEAD.size + length
            out.write(b"".join(names))


if __name__ == "__main__":
    main()
