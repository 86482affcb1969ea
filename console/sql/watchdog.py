"""Deadlines that hold although the server does not: a silent connection is cut from this side.

A statement timeout is the server's own promise, worth nothing when the server is frozen or the network gone.
One thread watches all running statements of a database; while nothing runs it sleeps.
"""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any

import psycopg

_LOOK_EVERY = 0.1
_CANCEL_PATIENCE = 1.0

Connection = psycopg.Connection[tuple[Any, ...]]


class Watch:
    """One connection at work, until `end`."""

    def __init__(self, connection: Connection, patience: float) -> None:
        self.connection = connection
        self._patience = patience
        self.end = time.monotonic() + patience
        self.cut = False
        self.cancelled = False

    def again(self) -> None:
        """The server has answered: the deadline starts anew."""
        self.end = time.monotonic() + self._patience

    def rest(self) -> None:
        """Nothing is asked of the server until `again`."""
        self.end = math.inf

    def cut_off(self) -> None:
        """Whoever waits for this connection gets an error at once; the server rolls back what was open."""
        self.cut = True
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self.connection.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


class Watchdog:
    """All the watches of one database."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._lock = Lock()
        self._wake = Event()
        self._thread: Thread | None = None

    def begin(self, connection: Connection, patience: float) -> Watch:
        """Whoever begins a watch ends it."""
        watch = Watch(connection, patience)
        with self._lock:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = Thread(target=self._look, name="postgres-watchdog", daemon=True)
                self._thread.start()
            if not self._wake.is_set():
                self._wake.set()
        return watch

    def end(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _look(self) -> None:
        while True:
            with self._lock:
                for watch in self._watches:  # not once it has ended: its connection may be somebody else's by then
                    if not watch.cut and watch.end <= time.monotonic():
                        watch.cut_off()
                idle = not self._watches
                if idle:
                    self._wake.clear()
            if idle:
                self._wake.wait()
            else:
                time.sleep(_LOOK_EVERY)

    def cancel(self) -> None:
        """Give up what is running now, on the server too. Returns at once: a frozen server is not waited for."""
        with self._lock:
            running = [watch for watch in self._watches if not watch.cancelled]
            for watch in running:
                watch.cancelled = True
        if running:
            Thread(target=self._cancel, args=(running,), name="postgres-cancel", daemon=True).start()

    def _cancel(self, running: list[Watch]) -> None:
        for watch in running:
            with suppress(psycopg.Error, OSError):
                if watch in self._watches:
                    watch.connection.cancel_safe(timeout=_CANCEL_PATIENCE)
        time.sleep(_LOOK_EVERY)
        with self._lock:
            for watch in self._watches.intersection(running):
                watch.cut_off()
