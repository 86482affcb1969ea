"""Hooks of alerts: a command that gets JSON on its standard input, or a web address that gets it by POST.

No shell is involved. A hook has a time-out, whatever it does. What it prints is read up to a limit and thrown away
beyond it. The address of a webhook is a secret: only its host is shown.
"""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import IO
from urllib.parse import SplitResult, urlsplit

from console.core.alerts import Hook
from console.core.text import first_line, neutralise

_KEPT_OUTPUT = 2_000
_CHUNK = 65_536
_FIRST_PAUSE = 1.0
_AFTER_KILL = 2.0
_MOST_ANSWER = 1_000


class CommandHook:
    """Runs a program with these arguments, in a process group of its own, which is killed at the time-out."""

    def __init__(self, name: str, command: Sequence[str], timeout: timedelta) -> None:
        self.name = name
        self.place = neutralise(command[0])
        self._command = list(command)
        self._timeout = timeout.total_seconds()

    def call(self, payload: str) -> str:
        try:
            process = subprocess.Popen(  # noqa: S603  an argument list from the config, never through a shell
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"cannot be started: {getattr(error, 'strerror', None) or error}"
        said = _Output(process.stderr)
        threading.Thread(target=_feed, args=(process.stdin, payload.encode()), daemon=True).start()
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            return f"timed out after {self._timeout:g} s"
        _kill_group(process)  # what it may have left behind in its group
        return "" if code == 0 else _sentence(f"ended with code {code}", said.text())


class _Output:
    """The beginning of what a process prints. The rest is read too, so that it never waits for us."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            return
        with suppress(OSError, ValueError), stream:
            while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
                self._kept += chunk[: _KEPT_OUTPUT - len(self._kept)]

    def text(self) -> str:
        self._thread.join(_AFTER_KILL)
        return self._kept.decode("utf-8", "replace")


def _feed(stream: IO[bytes] | None, payload: bytes) -> None:
    """Write to the program, which may end without reading it."""
    if stream is not None:
        with suppress(OSError), stream:
            stream.write(payload)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_AFTER_KILL)


class WebHook:
    """Posts to an https address. A temporary failure is tried again after a growing pause; no redirect is followed."""

    def __init__(
        self, name: str, url: str, timeout: timedelta, retries: int, headers: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self._url: SplitResult = urlsplit(url)
        self.place = f"https://{self._url.hostname}"
        self._timeout = timeout.total_seconds()
        self._retries = retries
        self._headers = {"Content-Type": "application/json", "User-Agent": "retriage", **(headers or {})}
        self._sleep = sleep

    def call(self, payload: str) -> str:
        why = ""
        for attempt in range(self._retries + 1):
            if attempt:
                self._sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
            why, temporary = self._post(payload.encode())
            if not why or not temporary:
                break
        return why

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why the delivery failed, or an empty text; and whether it may work later."""
        answers: list[tuple[str, bool]] = []
        # A server that answers one byte at a time would never reach the time-out of the socket.
        thread = threading.Thread(target=lambda: answers.append(self._request(body)), daemon=True)
        thread.start()
        thread.join(self._timeout)
        return answers[0] if answers else (f"timed out after {self._timeout:g} s", True)

    def _request(self, body: bytes) -> tuple[str, bool]:
        connection = None
        try:
            connection = http.client.HTTPSConnection(
                self._url.hostname or "", self._url.port, timeout=self._timeout, context=ssl.create_default_context()
            )
            path = self._url.path or "/"
            connection.request("POST", f"{path}?{self._url.query}" if self._url.query else path, body, self._headers)
            answer = connection.getresponse()
            answer.read(_MOST_ANSWER)
        except ssl.SSLCertVerificationError:
            return "its certificate is not trusted", False
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _sentence("cannot be reached", type(error).__name__), True
        finally:
            if connection is not None:
                connection.close()
        if 200 <= answer.status < 300:
            return "", False
        return f"answered with status {answer.status}", answer.status >= 500 or answer.status in (408, 425, 429)


def _sentence(what: str, detail: str) -> str:
    line = neutralise(first_line(detail))
    return f"{what}: {line}" if line else what


def _implement_hook(command: CommandHook, web: WebHook) -> tuple[Hook, Hook]:
    """Lets the type checker prove that the protocol is implemented in full."""
    return command, web
