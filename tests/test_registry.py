"""Plugins from a real distribution folder: good ones, and every way one can be broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from console import registry
from console.core.faults import ConfigFault, PluginFault, Unreachable
from console.registry import Unavailable
from console.settings import loads

ROOT = Path(__file__).parent.parent

GOOD = """
    from pydantic import BaseModel
    from console.core.faults import Unreachable

    class Options(BaseModel):
        path: str = ""

    class Queue:
        options = Options

        def __init__(self, name, options, policy, read_only, deadline):
            self.name, self.path, self.read_only, self.deadline = name, options.path, read_only, deadline

        @classmethod
        def open(cls, name, options, policy, *, read_only, deadline):
            if options.path == "gone":
                raise Unreachable("no such place", where=name)
            if options.path == "leak":
                raise RuntimeError("cannot parse postgresql://u:hunter2@db/app\\nsecond line")
            if options.path == "exit":
                raise SystemExit(7)
            if options.path == "interrupt":
                raise KeyboardInterrupt
            return cls(name, options, policy, read_only, deadline)

    class Bare: ...
    class NoOpen:
        options = Options
    not_a_class = 5
"""

MODULES = {
    "fake_good": GOOD,
    "fake_raises": "raise ValueError('boom')",
    "fake_exits": "import sys; sys.exit('bye')",
    "fake_syntax": "def (:",
    "fake_extra": "import psycopg_is_not_here",
    "fake_postgres": "raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')",
    "fake_s3": "raise ModuleNotFoundError(\"No module named 'obstore'\", name='obstore.store')",
    "fake_interrupt": "raise KeyboardInterrupt",
}

ENTRY_POINTS = """
    [retriage.backends]
    fake_good = fake_good:Queue
    fake_bare = fake_good:Bare
    fake_no_open = fake_good:NoOpen
    fake_number = fake_good:not_a_class
    fake_gone = fake_good:Nothing
    fake_no_module = fake_is_not_here:Queue
    fake_raises = fake_raises:Queue
    fake_exits = fake_exits:Queue
    fake_syntax = fake_syntax:Queue
    fake_extra = fake_extra:Queue
    fake_postgres = fake_postgres:Queue
    fake_s3 = fake_s3:Queue
    fake_interrupt = fake_interrupt:Queue
"""


def distribution(folder: Path, name: str, points: str) -> None:
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(dedent(points))


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(dedent(text))
        monkeypatch.delitem(sys.modules, module, raising=False)
    distribution(tmp_path, "fakes", ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def trouble(name: str) -> str:
    with pytest.raises(PluginFault) as caught:
        registry.load(name)
    return str(caught.value)


def test_names_are_listed_without_importing(site: Path) -> None:
    found = registry.available()
    assert registry.Installed("fake_good", "fakes", "1.2") in found
    assert list(found) == sorted(found)
    assert not set(MODULES) & set(sys.modules)


def test_ours_are_named_by_the_same_entry_point() -> None:
    assert "[project.entry-points.\"retriage.backends\"]" in (ROOT / "pyproject.toml").read_text()


def test_a_good_plugin_loads_and_opens() -> None:
    assert registry.load("fake_good").options.__name__ == "Options"
    text = "console: {read_only: true, deadline: 2s}\nbackends: {a: {plugin: fake_good, path: x}}"
    (backend,) = registry.open_all(loads(text))
    assert not isinstance(backend, Unavailable)
    assert (backend.name, vars(backend)["read_only"]) == ("a", True)
    assert vars(backend)["deadline"].total_seconds() == 2


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fake_god", "fake_god: No such plugin is installed. Did you mean 'fake_good'?"),
        ("fake_bare", "fake_bare: fake_good:Bare has no `options` model. "
         "Report this to the authors of fakes."),
        ("fake_no_open", "fake_no_open: fake_good:NoOpen has no `open`. "
         "Report this to the authors of fakes."),
        ("fake_number", "fake_number: fake_good:not_a_class has no `options` model. "
         "Report this to the authors of fakes."),
        ("fake_gone", "fake_gone: The plugin cannot be imported: AttributeError: "
         "module 'fake_good' has no attribute 'Nothing'"),
        ("fake_no_module", "fake_no_module: The plugin cannot be imported: "
         "ModuleNotFoundError: No module named 'fake_is_not_here'"),
        ("fake_raises", "fake_raises: The plugin cannot be imported: ValueError: boom"),
        ("fake_exits", "fake_exits: The plugin cannot be imported: SystemExit: bye"),
        ("fake_postgres", "fake_postgres: The plugin needs psycopg. Install retriage[postgres]."),
        ("fake_s3", "fake_s3: The plugin needs obstore. Install retriage[s3]."),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plugin_is_one_line(name: str, line: str) -> None:
    assert trouble(name) == line


def test_a_plugin_that_does_not_parse_is_a_fault() -> None:
    assert "The plugin cannot be imported: SyntaxError" in trouble("fake_syntax")


def test_an_unknown_name_lists_what_there_is() -> None:
    assert "Known: " in trouble("zzzzzz")
    assert "fake_good" in trouble("zzzzzz")


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        registry.load("fake_interrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.open_all(loads("backends: {a: {plugin: fake_good, path: interrupt}}"))


def test_no_other_distribution_takes_the_place_of_a_plugin_of_ours(site: Path) -> None:
    distribution(site, "thief", "[retriage.backends]\nsqlite_queue = fake_good:Queue\n")
    assert registry.load("sqlite_queue").__module__ == "plugins.sqlite_queue.backend"
    assert [p.distribution for p in registry.available() if p.name == "sqlite_queue"] == ["retriage", "thief"]


def test_two_distributions_with_one_name_are_refused(site: Path) -> None:
    distribution(site, "others", "[retriage.backends]\nfake_good = fake_raises:Queue\n")
    assert trouble("fake_good") == (
        "fake_good: Both fakes and others provide this plugin. Uninstall one of them."
    )


def test_broken_backends_are_entries_beside_the_good_ones() -> None:
    text = """
backends:
  a: {plugin: fake_good, path: fine}
  b: {plugin: fake_raises}
  c: {plugin: fake_good, path: gone}
  d: {plugin: fake_good, path: leak}
  e: {plugin: fake_good, pth: x}
  f: {plugin: fake_good, path: exit}
  g: {plugin: none_such}
  h: {plugin: fake_good, path: also fine}
"""
    found = registry.open_all(loads(text, Path("c.yaml")))
    assert [entry.name for entry in found] == list("abcdefgh")
    faults = {entry.name: entry.fault for entry in found if isinstance(entry, Unavailable)}
    assert {name: type(fault) for name, fault in faults.items() if name in "bcdfg"} == {
        "b": PluginFault, "c": Unreachable, "d": PluginFault, "f": PluginFault, "g": PluginFault,
    }  # fmt: skip
    assert isinstance(faults["e"], ConfigFault)
    assert str(faults["e"]) == "c.yaml:7: backends.e.pth: unknown key. Did you mean 'path'?"
    assert str(faults["d"]) == (
        "fake_good: The plugin cannot be opened: "
        "RuntimeError: cannot parse postgresql://u:***@db/app"
    )


def test_listing_plugins_loads_no_front_end_and_no_database() -> None:
    code = "import sys; from console import registry; registry.available(); print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"textual", "sqlalchemy", "plugins"} & set(found)
