"""Reads config.yaml into frozen Settings. Every mistake names file, line and key, and all are reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from console.config_peek import find_config
from console.core.item import is_backend_name
from console.settings.access import KEYS, read_access
from console.settings.config_file import command, read_config
from console.settings.models import (
    AlertSettings,
    BackendSettings,
    ConsoleSettings,
    Duration,
    HistorySettings,
    PolicySettings,
    Settings,
)
from console.settings.section import Section, kind_of
from console.settings.strict_yaml import Loc, Mistake, Tree, UnusableConfig, Value, parse, unknown_key
from console.settings.tree import TextValues, decode, read_tree
from console.settings.urls import mask_text, mask_url

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
]

def load(path: Path) -> Settings:
    """Read a config file; raises a ConfigFault with every mistake in it."""
    source = read_config(path, "Check the path, or try `retriage demo`.")
    return _read(source.content, path, str(path), others_read=source.others_read)


def loads(text: str | bytes, path: Path | None = None) -> Settings:
    """Read a config from text; `path` is only used in messages."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return _read(content, path, str(path) if path else "config", others_read=False)


def _read(content: bytes, path: Path | None, file: str, *, others_read: bool) -> Settings:
    text = decode(content, file)
    values = TextValues(command("chmod", "600", path) if others_read and path else None)
    tree = parse(text, file, values.check)
    settings = _settings(tree, path)
    if tree.mistakes or settings is None:
        raise UnusableConfig(file, tree.mistakes)
    return settings


def _settings(tree: Tree, path: Path | None) -> Settings | None:
    known = ("console", "history", "alerts", "backends", *KEYS)
    top = Section(tree.file, (), tree.values, tree.lines)
    found = [top.mistake((key,), unknown_key(key, known)) for key in tree.values if key not in known]
    section = _section(tree, ("console",), tree.values.get("console"))
    console, mistakes = section.check(ConsoleSettings)
    found += mistakes
    found += _keymap_mistakes(section)
    found += _shape_mistakes(top, "console")
    found += _shape_mistakes(top, "backends")
    found += _shape_mistakes(top, "history")
    history, mistakes = _section(tree, ("history",), tree.values.get("history")).check(HistorySettings)
    found += mistakes
    found += _shape_mistakes(top, "alerts")
    alerts, mistakes = _section(tree, ("alerts",), tree.values.get("alerts")).check(AlertSettings)
    found += mistakes
    backends = list(_backends(tree, found))
    trail = console.trail.get_secret_value() if console and console.trail else None
    access, mistakes = read_access(top, [backend.name for backend in backends], trail=trail)
    found += mistakes
    _add(tree.mistakes, found)
    if console is None or history is None or alerts is None:
        return None
    return Settings(path, console, tuple(backends), history, alerts, access)


def _keymap_mistakes(console: Section) -> Iterator[Mistake]:
    """Mistakes in the keymap. They may quote it: it is not secret."""
    keymap = console.values.get("keymap")
    if isinstance(keymap, dict) and keymap:
        from console.actions.keymap import wrong_keys

        texts = {action: keys for action, keys in keymap.items() if isinstance(keys, str)}
        for wrong in wrong_keys(texts):
            yield console.mistake(("keymap", wrong.action), f"{wrong.what}. {wrong.fix}")


def _shape_mistakes(parent: Section, key: str) -> Iterator[Mistake]:
    value = parent.values.get(key)
    if value is not None and not isinstance(value, dict):
        yield parent.mistake((key,), f"expected a section of key: value lines, found {kind_of(value)}")


def _section(tree: Tree, at: Loc, value: Value | Mapping[str, Value]) -> Section:
    return Section(tree.file, at, value if isinstance(value, Mapping) else {}, tree.lines)


def _backends(tree: Tree, mistakes: list[Mistake]) -> Iterator[BackendSettings]:
    section = _section(tree, ("backends",), tree.values.get("backends"))
    for name, value in section.values.items():
        if not is_backend_name(name):
            what = "a backend's name may have only a-z, 0-9 and -"
            mistakes.append(section.mistake((name,), what))
        if not isinstance(value, dict):
            what = f"expected a section with at least plugin:, found {kind_of(value)}"
            mistakes.append(section.mistake((name,), what))
            continue
        if backend := _backend(tree, name, value, mistakes):
            yield backend


def _backend(
    tree: Tree, name: str, value: Mapping[str, Value], mistakes: list[Mistake]
) -> BackendSettings | None:
    here = _section(tree, ("backends", name), value)
    plugin = value.get("plugin")
    if not isinstance(plugin, str) or not plugin:
        problem = "required, but missing" if "plugin" not in value else f"expected text, found {kind_of(plugin)}"
        mistakes.append(here.mistake(("plugin",), f"{problem}. `retriage plugins` lists the installed ones."))
        plugin = ""
    mistakes += _shape_mistakes(here, "policy")
    policy = None
    if value.get("policy") is not None:
        policy, wrong = _section(tree, (*here.at, "policy"), value.get("policy")).check(PolicySettings)
        mistakes += wrong
    read_only = value.get("read_only", False)
    if not isinstance(read_only, bool):
        mistakes.append(here.mistake(("read_only",), f"expected true or false, found {kind_of(read_only)}"))
    options = {key: option for key, option in value.items() if key not in ("plugin", "policy", "read_only")}
    return BackendSettings(
        name, plugin, policy or PolicySettings.model_construct(), _section(tree, here.at, options), read_only is True
    )


def _add(known: list[Mistake], found: list[Mistake]) -> None:
    """Add mistakes, except at places that already have one."""
    places = {mistake.loc or mistake.line for mistake in known}
    known += [mistake for mistake in found if not places & {mistake.loc, mistake.line}]
