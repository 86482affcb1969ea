"""Passwords in URLs: found, refused, masked. Works on broken URLs too, and never raises."""

from __future__ import annotations

import re
from urllib.parse import unquote

MASK = "***"
_QUERY = re.compile(r"[\w.%~+-]+=[^&;]*(?:[&;][\w.%~+-]+=[^&;]*)*[&;]?")
_SECRET = re.compile(r"pass(?!file)|pwd|secret|token|credential|(api|access)_?key|sig(nature)?$|auth", re.I)
_PASSWORDS = frozenset({"password", "passwd", "pass", "pwd", "sslpassword"})
_IN_WORDS = re.compile(
    r"\b([\w-]*(?:pass(?!file)|pwd|secret|token)[\w-]*)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&;,]+)", re.I
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")


def mask_url(url: str) -> str:
    """The URL as it may be shown: `***` for the password and for every query value that looks secret.

    Where a URL is ambiguous (an unescaped `@`, `/` or `?` in the password) it hides too much rather than
    too little.
    """
    head, query = _split_query(url)
    if span := _password_span(head):
        head = f"{head[: span[0]]}{MASK}{head[span[1] :]}"
    if query is None:
        return _IN_WORDS.sub(rf"\1\2{MASK}", head)
    return f"{head}?{'&'.join(_masked(pair) for pair in re.split('[&;]', query))}"


def mask_text(text: str) -> str:
    """A message as it may be shown: every URL in it masked, and every `password=…`."""
    return _IN_WORDS.sub(rf"\1\2{MASK}", _URL.sub(lambda match: mask_url(match[0]), text))


def password_in(url: str) -> str | None:
    """The password between `user:` and the last `@`, as written; None when there is none."""
    head, _ = _split_query(url)
    span = _password_span(head)
    return head[span[0] : span[1]] if span else None


def query_password_in(url: str) -> str | None:
    """The name of a query parameter that carries a password, if one does."""
    if "://" not in url:
        return None
    for pair in re.split("[?&;]", url)[1:]:
        name, equals, value = pair.partition("=")
        if equals and value and unquote(name).strip().lower() in _PASSWORDS:
            return unquote(name).strip().lower()
    return None


def _split_query(url: str) -> tuple[str, str | None]:
    """Head and query. What follows the last `?` is a query only if it reads like one."""
    head, mark, query = url.rpartition("?")
    if mark and (not query or _QUERY.fullmatch(query)):
        return head, query
    return url, None


def _password_span(head: str) -> tuple[int, int] | None:
    scheme, sep, _ = head.partition("://")
    if sep and scheme.lower().startswith(("sqlite", "file")):
        return None
    start = head.find(":", len(scheme) + len(sep) if sep else 0) + 1
    end = head.rfind("@")
    return (start, end) if 0 < start < end else None


def _masked(pair: str) -> str:
    name, equals, value = pair.partition("=")
    secret = _SECRET.search(unquote(name)) or "@" in value
    return f"{name}={MASK}" if equals and value and secret else pair
