"""The house rules: who may import whom, what is in the wheel, and that both packages are ours."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110)


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
    beside = {p for kind in ("yaml", "md", "json") for p in (ROOT / "plugins").rglob(f"*.{kind}")}
    assert beside
    assert {str(path.relative_to(ROOT)) for path in beside} <= names


GUARD = (
    "import sys; from console.core.faults import Fault; from console.guard import require_own_packages\n"
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
        "Retriage shares its folder with another package of the same name: "
        f"`console` is in {ROOT.resolve()}, but `plugins` is {found}. "
        "Install Retriage by itself: `pipx install retriage`, `uv tool install retriage` or a new venv."
    )
