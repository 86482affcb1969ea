"""Who may import whom, that no imports form a cycle, and what is in the wheel."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)


def test_contracts_are_kept() -> None:
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = run(sys.executable, "-c", code, "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def imported_by(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "console/core").rglob("*.py")), ids=lambda path: path.name)
def test_core_imports_only_itself_and_the_standard_library(path: Path) -> None:
    """The contract names the libraries we know; this one needs no list."""
    strangers = {
        name
        for name in imported_by(path)
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith("console.core")
    }
    assert not strangers


def imports_at_run_time(node: ast.AST) -> Iterator[str]:
    """Every name that is imported, in functions too; not what only the type checker reads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports_at_run_time(child)


@cache
def import_graph() -> dict[str, set[str]]:
    """Every module of ours and what it imports at run time."""
    paths = [path for package in ("console", "plugins") for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    return {
        module: {
            target
            for name in imports_at_run_time(ast.parse(path.read_text()))
            for target in [name if name in modules else name.rpartition(".")[0]]
            if target in modules and target != module
        }
        for module, path in modules.items()
    }


def test_no_imports_form_a_cycle() -> None:
    TopologicalSorter(import_graph()).prepare()  # raises CycleError with the modules of the cycle


MAY_IMPORT = {
    "core": "",
    "actions": "core",
    "sql": "core",
    "keyed": "core",
    "report": "core",
    "testing": "core",
    "trail": "core sql",
    "history": "core sql",
    "plugins": "core sql keyed",
    "ui": "core actions report last_looked signals xdg",
    "cli": "core actions report last_looked console",
    "settings": "core actions config_peek xdg",
    "xdg": "",
    "install_check": "core",
    "identity": "core",
    "last_looked": "xdg",
    "config_peek": "core actions xdg",
    "process": "settings xdg",
    "signals": "",
    "registry": "core settings console xdg",
    "attach": "core settings registry",
    "console": "",
}
"""What each folder or module of `console` may import, and `plugins`. `console` itself is the version."""
COMPOSES = ("__main__", "sessions", "demo")
COMMANDS_OF_PLUGINS = "plugins.partition_store.commands"


def folder_of(module: str) -> str:
    first, *rest = module.split(".")
    return rest[0] if first == "console" and rest else first


def test_every_folder_imports_what_it_may() -> None:
    """The contracts name what is forbidden; this names all that is allowed, so a new folder has to be listed."""
    found = {
        (module, target)
        for module, targets in import_graph().items()
        for target in targets
        if folder_of(target) not in (folder_of(module), *MAY_IMPORT.get(folder_of(module), "").split())
        and folder_of(module) not in COMPOSES
    }
    assert {pair for pair in found if not (pair[0].startswith(COMMANDS_OF_PLUGINS) and "console.cli" in pair[1])} == set()


def test_the_manual_has_the_imports_of_every_folder() -> None:
    """The table under "Imports" in docs/exercises.md."""
    found: dict[str, set[str]] = {}
    for module, targets in import_graph().items():
        folder = folder_of(module)
        others = {folder_of(target) for target in targets if not module.startswith(COMMANDS_OF_PLUGINS)} - {folder}
        found.setdefault(folder, set()).update(others)
    section = (ROOT / "docs/exercises.md").read_text().partition("## Imports")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    shown = {row[1].split("`")[1]: set(row[3].split("`")[1::2]) for row in rows}
    assert shown == {folder: others for folder, others in found.items() if folder not in (*COMPOSES, "console")}


def test_the_wheel_holds_exactly_our_two_packages(tmp_path: Path) -> None:
    code = (
        "import sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(next(WheelBuilder('.').build(directory=sys.argv[1], versions=['standard'])))"
    )
    done = run(sys.executable, "-c", code, str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"console", "plugins", f"retriage-{version}.dist-info"}
    data_files = {p for kind in ("yaml", "md", "json") for p in (ROOT / "plugins").rglob(f"*.{kind}")}
    assert data_files
    assert {str(path.relative_to(ROOT)) for path in data_files} <= names


GUARD = (
    "import sys; from console.core.faults import Fault; from console.install_check import require_own_packages\n"
    "try: require_own_packages()\n"
    "except Fault as fault: sys.exit(str(fault))\n"
    "assert 'plugins' not in sys.modules\n"
)


def guarded(first: Path | None) -> subprocess.CompletedProcess[str]:
    path = f"import sys; sys.path[:0] = {[str(folder) for folder in (first, ROOT) if folder]!r}\n"
    return run(sys.executable, "-c", path + GUARD, cwd=Path("/"))


def test_the_guard_lets_our_own_packages_pass() -> None:
    done = guarded(None)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", ["package", "module"])
def test_the_guard_stops_at_a_strangers_plugins(tmp_path: Path, kind: str) -> None:
    if kind == "package":
        (tmp_path / "plugins").mkdir()
        (tmp_path / "plugins/__init__.py").write_text("raise RuntimeError('imported')")
        found = f"in {tmp_path.resolve()}"
    else:
        (tmp_path / "plugins.py").write_text("raise RuntimeError('imported')")
        found = "not installed as a package"
    done = guarded(tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "Retriage is mixed up with another package of the same name: "
        f"`console` is in {ROOT.resolve()}, but `plugins` is {found}. "
        "Install Retriage on its own: `pipx install retriage`, `uv tool install retriage` or a new venv."
    )
