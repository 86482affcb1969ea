"""Deadlines that hold even if the server is frozen: a silent connection is cut from this side.

A statement timeout is kept by the server. It does not help if the server is frozen or the network is gone.
One thread watches all running statements of a database; it sleeps while nothing runs.
"""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Protocol

_CHECK_EVERY = 0.1
_CANCEL_PATIENCE = 1.0


class Wire(Protocol):
    """A connection of a driver, as far as the watchdog needs it."""

    def fileno(self) -> int:
        """The socket of the connection."""

    def cancel_safe(self, *, timeout: float) -> None:
        """Ask the server to end the statement that runs now, over another connection."""


class Watch:
    """One connection in use, and the time until which its server must answer."""

    def __init__(self, connection: Wire, patience: float) -> None:
        self.connection = connection
        self.patience = patience
        self.end = time.monotonic() + patience
        self.cut = False
        self.cancelled = False

    def again(self) -> None:
        """The server has answered: the deadline starts again."""
        self.end = time.monotonic() + self.patience

    def rest(self) -> None:
        """Nothing is asked of the server until `again`."""
        self.end = math.inf

    def cut_off(self) -> None:
        """Close the socket. A thread that waits for the server gets an error at once; the server rolls back."""
        self.cut = True
        # Any error of the driver is ignored: a connection without a socket needs no cut.
        with suppress(Exception), socket.socket(fileno=os.dup(self.connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


class Watchdog:
    """All watches of one database."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._lock = Lock()
        self._wake = Event()
        self._thread: Thread | None = None

    def begin(self, connection: Wire, patience: float) -> Watch:
        """Watch a connection until `end` is called or it is cut."""
        watch = Watch(connection, patience)
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = Thread(target=self._keep_watch, name="sql-watchdog", daemon=True)
                self._thread.start()
            if not self._wake.is_set():
                self._wake.set()
        return watch

    def end(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _keep_watch(self) -> None:
        while True:
            with self._lock:
                # Under the lock: after `end` the connection may be used by another thread.
                for watch in [one for one in self._watches if one.end <= time.monotonic()]:
                    watch.cut_off()
                    self._watches.discard(watch)
                idle = not self._watches
                if idle:
                    self._wake.clear()
            if idle:
                self._wake.wait()
            else:
                time.sleep(_CHECK_EVERY)

    def cancel(self) -> None:
        """Cancel the statements that run now, on the server too. Returns at once: it does not wait for the server."""
        with self._lock:
            running = [watch for watch in self._watches if not watch.cancelled]
            for watch in running:
                watch.cancelled = True
        if running:
            Thread(target=self._cancel, args=(running,), name="sql-cancel", daemon=True).start()

    def _cancel(self, running: list[Watch]) -> None:
        for watch in running:
            with suppress(Exception):  # a server that does not take it is cut below
                if watch in self._watches:
                    watch.connection.cancel_safe(timeout=_CANCEL_PATIENCE)
        time.sleep(_CHECK_EVERY)
        with self._lock:
            for watch in self._watches.intersection(running):
                watch.cut_off()
