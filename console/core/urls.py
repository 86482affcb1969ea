"""The servers in a database URL, as libpq reads them: one host, or several with commas between them."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

_AUTHORITY = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?]*)(.*)", re.S)
_HOST = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::(.*))?", re.S)
_HIGHEST_PORT = 65535


class UrlParts(NamedTuple):
    """A URL and its servers."""

    before: str
    """Everything before the first host: scheme and user."""
    servers: tuple[tuple[str, str], ...]
    """Host and port; the port is empty where the default is meant."""
    after: str


def url_parts(url: str) -> UrlParts | None:
    """The parts of a URL with a server; None for text that is no such URL. ValueError says what is wrong with it."""
    found = _AUTHORITY.fullmatch(url)
    if found is None:
        return None
    scheme, authority, after = found.groups()
    user, at, hosts = authority.rpartition("@")
    servers = tuple(map(_server, hosts.split(",")))
    if len(servers) > 1 and not scheme.lower().startswith("postgres"):
        raise ValueError("only the URL of a PostgreSQL database may name several hosts")
    for pair in after.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if name == "port":
            for port in filter(None, unquote(value).split(",")):
                _require_port(port)
    return UrlParts(f"{scheme}{user}{at}", servers, after)


def _server(text: str) -> tuple[str, str]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError("the host in the URL has a bracket without its counterpart. Write [::1] for an IPv6 address")
    host, port = found[1].strip("[]"), found[2]
    if port is None:
        return host, ""
    _require_port(port)
    return host, port


def _require_port(port: str) -> None:
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) <= _HIGHEST_PORT):
        raise ValueError(f"the port in the URL must be a number from 1 to {_HIGHEST_PORT}")
