"""Reads a YAML file of the config into checked values with their lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from console.config_peek import MAX_BYTES
from console.core.urls import url_parts
from console.settings.config_file import read_config
from console.settings.strict_yaml import Loc, Mistake, Tree, UnusableConfig, parse
from console.settings.urls import password_in, query_password_in

_UNESCAPED = re.compile(r"[@/?#\s]")
_WEB = ("http://", "https://")
_SERVERS = ("postgres", "mysql", "mariadb", "redis")
_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_SQLITE_HOME = re.compile(r"(sqlite(?:\+\w+)?:///)(~(?:/[^?]*)?)(\?.*)?", re.S)


class Unresolved(ValueError):
    """A `${…}` without a value; the message says which one and what to do."""


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """`${NAME}` and `${NAME:-default}` replaced; an empty variable counts as unset. `$${` is a plain `${`."""

    def value(name: str, default: str | None) -> str:
        found = env.get(name) or default
        if found is None:
            raise Unresolved(f"${{{name}}} is not set or empty. Set it, or write ${{{name}:-default}}")
        return found

    return _replace(text, value)


def literal_part(text: str) -> str:
    """The text as far as it is written in the file: without variables, with defaults."""
    return _replace(text, lambda _, default: default or "")


def _replace(text: str, value: Callable[[str, str | None], str]) -> str:
    def one(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise Unresolved("${ needs a name and a }, as in ${NAME}. Write $${ for a plain ${.")
        return value(match[1], match[2])

    return _REFERENCE.sub(one, text)


def expand_home(text: str) -> str:
    """A leading `~/`, also in the path part of a sqlite URL, becomes the home folder."""
    if text == "~" or text.startswith("~/"):
        return _home() + text[1:]
    if match := _SQLITE_HOME.fullmatch(text):
        return f"{match[1]}{_home()}{match[2][1:]}{match[3] or ''}"
    return text


def _home() -> str:
    return os.environ.get("HOME") or str(Path.home())


def read_tree(path: Path) -> Tree:
    """Read a file that the config includes, by the same rules as the config itself."""
    source = read_config(path, "A relative path starts at the config's folder.")
    tree = parse(decode(source.content, str(path)), str(path), TextValues(None).check)
    if tree.mistakes:
        raise UnusableConfig(str(path), tree.mistakes)
    return tree


def decode(content: bytes, file: str) -> str:
    if len(content) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 1024} KB. Is this the right file?"
        raise UnusableConfig(file, [Mistake(0, (), what)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableConfig(file, [Mistake(line, (), "not UTF-8 text")]) from None


class TextValues:
    """Checks and expands every text value: `${…}`, `~`, and the rules for passwords in URLs."""

    def __init__(self, make_private: str | None) -> None:
        self._make_private = make_private

    def check(self, text: str, loc: Loc) -> str:
        value = interpolate(text, os.environ)
        if name := query_password_in(value):
            raise ValueError(
                f"a password in the URL's query ({name}=) can end up in logs. "
                "Write user:${NAME}@host, or use a passfile."
            )
        if "://" in value and not value.startswith(_WEB):
            self._check_password(text, value)
            if value.startswith(_SERVERS):
                url_parts(value)
        return expand_home(value) if _may_be_path(loc) else value

    def _check_password(self, text: str, value: str) -> None:
        password = password_in(value)
        if password and _UNESCAPED.search(password):
            raise ValueError(
                "the password in the URL must be percent-encoded: @ as %40, / as %2F, ? as %3F, # as %23"
            )
        if self._make_private and password_in(literal_part(text)):
            raise ValueError(
                f"others can read this password. Write ${{NAME}} instead, or run: {self._make_private}"
            )


def _may_be_path(loc: Loc) -> bool:
    """Whether a value may be a path or URL: `console.trail`, `console.anchor` and a plugin's own keys."""
    if loc[:1] == ("backends",):
        return len(loc) > 2 and loc[2] != "policy"
    return loc in (("console", "trail"), ("console", "anchor"))
