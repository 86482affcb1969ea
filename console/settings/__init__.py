"""config.yaml → frozen Settings. Every mistake names file, line and key, and all are told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from console.core.item import is_backend_name
from console.glance import MAX_BYTES, find_config
from console.settings.files import command, read_config
from console.settings.interpolate import expand_home, interpolate, literal_part
from console.settings.mistakes import Loc, Mistake, UnusableConfig, suggestion, unknown_key
from console.settings.models import BackendSettings, ConsoleSettings, Duration, PolicySettings, Settings
from console.settings.section import Section, kind_of
from console.settings.strict_yaml import Tree, Value, parse
from console.settings.urls import mask_text, mask_url, password_in, query_password_in

__all__ = [
    "BackendSettings",
    "ConsoleSettings",
    "Duration",
    "PolicySettings",
    "Section",
    "Settings",
    "UnusableConfig",
    "find_config",
    "load",
    "loads",
    "mask_text",
    "mask_url",
    "read_tree",
    "suggestion",
]

_UNESCAPED = re.compile(r"[@/?#\s]")
_WEB = ("http://", "https://")


def load(path: Path) -> Settings:
    """The configuration in that file; raises ConfigFault with everything that is wrong with it."""
    source = read_config(path, "`retriage demo` works without one.")
    return _read(source.content, path, str(path), others_read=source.others_read)


def read_tree(path: Path) -> Tree:
    """A file beside the config, by the same rules: who may write it, what YAML it may hold."""
    source = read_config(path, "A relative path begins at the config's folder.")
    tree = parse(_decode(source.content, str(path)), str(path), _Values(None).check)
    if tree.mistakes:
        raise UnusableConfig(str(path), tree.mistakes)
    return tree


def loads(text: str | bytes, path: Path | None = None) -> Settings:
    """The same from a text; `path` is only named in mistakes."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return _read(content, path, str(path) if path else "config", others_read=False)


def _read(content: bytes, path: Path | None, file: str, *, others_read: bool) -> Settings:
    text = _decode(content, file)
    values = _Values(command("chmod", "600", path) if others_read and path else None)
    tree = parse(text, file, values.check)
    settings = _settings(tree, path)
    if tree.mistakes or settings is None:
        raise UnusableConfig(file, tree.mistakes)
    return settings


def _decode(content: bytes, file: str) -> str:
    if len(content) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 1024} KB; is this the right file?"
        raise UnusableConfig(file, [Mistake(0, (), what)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnusableConfig(file, [Mistake(line, (), "not a text file in UTF-8")]) from None


class _Values:
    """What every text value goes through: `${…}`, `~`, and the rules about passwords in URLs."""

    def __init__(self, make_private: str | None) -> None:
        self._make_private = make_private

    def check(self, text: str, loc: Loc) -> str:
        value = interpolate(text, os.environ)
        if name := query_password_in(value):
            raise ValueError(
                f"a password in the URL's query ({name}=) ends up in logs; "
                "write user:${NAME}@host, or use a passfile"
            )
        if "://" in value and not value.startswith(_WEB):
            self._check_password(text, value)
        return expand_home(value) if _holds_places(loc) else value

    def _check_password(self, text: str, value: str) -> None:
        password = password_in(value)
        if password and _UNESCAPED.search(password):
            raise ValueError(
                "the password in the URL must be percent-encoded: @ as %40, / as %2F, ? as %3F, # as %23"
            )
        if self._make_private and password_in(literal_part(text)):
            raise ValueError(
                f"a password that others can read; write ${{NAME}} instead, or run: {self._make_private}"
            )


def _holds_places(loc: Loc) -> bool:
    """Whether a value there may be a path or URL: `console.trail`, `console.anchor`, a plugin's own keys."""
    if loc[:1] == ("backends",):
        return len(loc) > 2 and loc[2] != "policy"
    return loc in (("console", "trail"), ("console", "anchor"))


def _settings(tree: Tree, path: Path | None) -> Settings | None:
    known = ("console", "backends")
    top = Section(tree.file, (), tree.values, tree.lines)
    found = [top.mistake((key,), unknown_key(key, known)) for key in tree.values if key not in known]
    section = _section(tree, ("console",), tree.values.get("console"))
    console, mistakes = section.check(ConsoleSettings)
    found += mistakes
    found += _keys(section)
    found += _shape(top, "console")
    found += _shape(top, "backends")
    backends = list(_backends(tree, found))
    _add(tree.mistakes, found)
    return Settings(path, console, tuple(backends)) if console else None


def _keys(console: Section) -> Iterator[Mistake]:
    """Of a keymap; like a saved view it is no secret, the console shows it."""
    keymap = console.values.get("keymap")
    if isinstance(keymap, dict) and keymap:
        from console.core.keymap import wrong_keys

        texts = {action: keys for action, keys in keymap.items() if isinstance(keys, str)}
        for wrong in wrong_keys(texts):
            yield console.mistake(("keymap", wrong.action), f"{wrong.what}. {wrong.fix}")


def _shape(parent: Section, key: str) -> Iterator[Mistake]:
    value = parent.values.get(key)
    if value is not None and not isinstance(value, dict):
        yield parent.mistake((key,), f"expected a section of key: value lines, got {kind_of(value)}")


def _section(tree: Tree, at: Loc, value: Value | Mapping[str, Value]) -> Section:
    return Section(tree.file, at, value if isinstance(value, Mapping) else {}, tree.lines)


def _backends(tree: Tree, mistakes: list[Mistake]) -> Iterator[BackendSettings]:
    all_of_them = _section(tree, ("backends",), tree.values.get("backends"))
    for name, value in all_of_them.values.items():
        if not is_backend_name(name):
            what = "a backend's name is made of a-z, 0-9 and -"
            mistakes.append(all_of_them.mistake((name,), what))
        if not isinstance(value, dict):
            what = f"expected a section with at least plugin:, got {kind_of(value)}"
            mistakes.append(all_of_them.mistake((name,), what))
            continue
        if backend := _backend(tree, name, value, mistakes):
            yield backend


def _backend(
    tree: Tree, name: str, value: Mapping[str, Value], mistakes: list[Mistake]
) -> BackendSettings | None:
    here = _section(tree, ("backends", name), value)
    plugin = value.get("plugin")
    if not isinstance(plugin, str) or not plugin:
        got = "is required and missing" if "plugin" not in value else f"expected text, got {kind_of(plugin)}"
        mistakes.append(here.mistake(("plugin",), f"{got}; `retriage plugins` lists what is installed"))
        plugin = ""
    mistakes += _shape(here, "policy")
    policy = None
    if value.get("policy") is not None:
        policy, wrong = _section(tree, (*here.at, "policy"), value.get("policy")).check(PolicySettings)
        mistakes += wrong
    options = {key: option for key, option in value.items() if key not in ("plugin", "policy")}
    return BackendSettings(name, plugin, policy or PolicySettings.model_construct(), _section(tree, here.at, options))


def _add(known: list[Mistake], found: list[Mistake]) -> None:
    """Mistakes beside those already known; of two at one place the first says it."""
    places = {mistake.loc or mistake.line for mistake in known}
    known += [mistake for mistake in found if not places & {mistake.loc, mistake.line}]
