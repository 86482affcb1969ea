"""Proxies in front of a database that change what is sent; that of PostgreSQL also drops the start-up options, as poolers do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa


@contextmanager
def dropping_options(url: str, folder: Path, replaced: tuple[bytes, bytes] = (b"", b"")) -> Iterator[str]:
    """The URL of a proxy to this server until the block ends. `replaced` is changed in all that is sent."""
    server = sa.make_url(url)
    target = f"{server.query['host']}/.s.PGSQL.5432"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / ".s.PGSQL.5432"))
        listener.listen()
        threading.Thread(target=_accept, args=(listener, target, replaced), daemon=True).start()
        try:
            yield server.set(query={"host": str(folder)}).render_as_string(hide_password=False)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, target: str, replaced: tuple[bytes, bytes]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, target, replaced), daemon=True).start()


def _serve(client: socket.socket, target: str, replaced: tuple[bytes, bytes]) -> None:
    with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError, struct.error):
        server.connect(target)
        message = _startup(client)
        while message[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):  # TLS or GSS: no
            client.sendall(b"N")
            message = _startup(client)
        server.sendall(_without_options(message))
        back = threading.Thread(target=_copy, args=(server, client, (b"", b"")), daemon=True)
        back.start()
        _copy(client, server, replaced)
        back.join()


@contextmanager
def changing(server: str, own: Path, replaced: tuple[bytes, bytes]) -> Iterator[None]:
    """A proxy at the socket `own`, to that of a server, in which all that is sent is changed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own))
        listener.listen()
        threading.Thread(target=_pass_on, args=(listener, server, replaced), daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _pass_on(listener: socket.socket, target: str, replaced: tuple[bytes, bytes]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, target, replaced), daemon=True).start()


def _connect(client: socket.socket, target: str, replaced: tuple[bytes, bytes]) -> None:
    with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
        server.connect(target)
        back = threading.Thread(target=_copy, args=(server, client, (b"", b"")), daemon=True)
        back.start()
        _copy(client, server, replaced)
        back.join()


def _startup(client: socket.socket) -> bytes:
    head = client.recv(4, socket.MSG_WAITALL)
    return head + client.recv(struct.unpack("!I", head)[0] - 4, socket.MSG_WAITALL)


def _without_options(message: bytes) -> bytes:
    if message[4:8] != b"\x00\x03\x00\x00" and message[4:6] != b"\x00\x03":
        return message
    words = message[8:].rstrip(b"\0").split(b"\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    kept = b"".join(name + b"\0" + value + b"\0" for name, value in pairs if name != b"options")
    body = message[4:8] + kept + b"\0"
    return struct.pack("!I", len(body) + 4) + body


def _copy(source: socket.socket, target: socket.socket, replaced: tuple[bytes, bytes]) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data.replace(*replaced) if replaced[0] else data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
