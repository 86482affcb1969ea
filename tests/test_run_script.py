"""The pure parts of `run`: where arguments go, and when the environment counts as ready."""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
WORKERS = str(2 * (os.cpu_count() or 1))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("run_script", str(ROOT / "run"))
    spec = spec_from_loader("run_script", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", str(tmp_path))
    return module


@pytest.fixture
def ran(script: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been executed, nothing being set up."""
    calls: list[list[str]] = []
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")
    monkeypatch.setattr(script, "set_up", lambda extras: calls.append(["set up", extras]))
    monkeypatch.setattr(script.os, "execv", lambda path, command: calls.append(command))
    monkeypatch.setattr(script.os, "chdir", lambda path: calls.append(["cd"]))
    return calls


def test_the_script_is_executable_and_only_needs_the_standard_library() -> None:
    path = ROOT / "run"
    assert path.stat().st_mode & 0o111
    modules = [
        alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
        for alias in node.names
    ]  # fmt: skip
    assert {name.partition(".")[0] for name in modules} <= sys.stdlib_module_names


def test_an_old_python_can_read_it() -> None:
    ast.parse((ROOT / "run").read_text(), feature_version=(3, 7))


@pytest.mark.parametrize(
    ("args", "extras", "last"),
    [
        ([], "USE", ["retriage"]),
        (["demo", "--reset"], "USE", ["retriage", "demo", "--reset"]),
        (["check", "--format", "json"], "USE", ["retriage", "check", "--format", "json"]),
        (["list", "test"], "USE", ["retriage", "list", "test"]),
        (["test", "-k", "x"], "DEV", ["pytest", "-n", WORKERS, "--dist", "worksteal", "-k", "x"]),
        (["check"], "DEV", ["lint-imports"]),
    ],
)
def test_arguments_find_their_command(script: Any, args: list[str], extras: str, last: list[str]) -> None:
    assert (script.route(args)[0], script.route(args)[1][-1]) == (getattr(script, extras), last)


@pytest.mark.parametrize(("library", "extras"), [("glibc", "all,demo"), ("", "all")])
def test_the_demos_redis_is_not_compiled(script: Any, monkeypatch: pytest.MonkeyPatch, library: str, extras: str) -> None:
    """Its wheel is for glibc on Linux on x86-64; the markers of the extra say the rest."""
    monkeypatch.setattr("platform.libc_ver", lambda: (library, ""))
    again: dict[str, Any] = {"__file__": script.__file__, "__name__": "run_script"}
    exec(compile((ROOT / "run").read_text(), "run", "exec"), again)
    assert again["USE"] == extras


def test_every_extra_that_it_names_exists(script: Any) -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert {"all", "demo", *script.DEV.split(",")} <= extras.keys()
    assert {*extras["all"]} >= {one for name in ("postgres", "mysql", "s3", "redis", "mcp") for one in extras[name]}


def test_without_uv_it_becomes_the_command_in_its_own_venv(
    script: Any, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    script.main(["demo"])
    assert ran == [["set up", script.USE], [f"{script.VENV}/bin/retriage", "demo"]]


def test_with_uv_it_becomes_uv(script: Any, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: "/bin/uv")
    script.main(["test", "-x"])
    assert ran == [
        ["cd"],
        ["/bin/uv", "run", "--quiet", "--project", str(ROOT), "--extra", "all", "--extra", "dev", "--",
         "pytest", "-n", WORKERS, "--dist", "worksteal", "-x"],
    ]  # fmt: skip


def test_only_the_tests_keep_what_python_compiles(script: Any, ran: list[list[str]]) -> None:
    script.main(["demo"])
    assert "PYTHONDONTWRITEBYTECODE" in os.environ
    assert "PYTHONPYCACHEPREFIX" not in os.environ
    script.main(["test"])
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert os.environ["PYTHONPYCACHEPREFIX"] == f"{script.VENV}/bytecode"


def test_an_old_python_is_reported_what_is_needed(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.shutil, "which", lambda name: None)
    monkeypatch.setattr(script.sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"^run: needs Python 3.11 or newer, or uv; this is Python 3.9$"):
        script.main(["demo"])


def test_without_ensurepip_it_names_the_package(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^run: this Python has no ensurepip; install the package python3-venv"):
        script.set_up("all")


def test_the_key_follows_what_is_installed(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {script.key(b"a", "all"), script.key(b"b", "all"), script.key(b"a", "all,dev")}
    monkeypatch.setattr(script.sys, "version", "3.99")
    assert len(keys | {script.key(b"a", "all")}) == 4


def test_ready_needs_the_right_stamp_and_a_python(script: Any, tmp_path: Path) -> None:
    assert not script.ready(b"a", "all")
    Path(script.stamp("all,dev")).write_text(script.key(b"a", "all,dev"))
    assert not script.ready(b"a", "all")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    assert script.ready(b"a", "all"), "more than asked for is enough"
    assert script.ready(b"a", "all,dev")
    assert not script.ready(b"applied", "all")
    Path(script.stamp("all,dev")).unlink()
    Path(script.stamp("all")).write_text(script.key(b"a", "all"))
    assert not script.ready(b"a", "all,dev"), "less than asked for is not"


def test_a_failed_set_up_leaves_no_stamp(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path(script.stamp(script.USE)).write_text("old")

    def fail(extras: str) -> None:
        sys.exit("run: setting up failed")

    monkeypatch.setattr(script, "install", fail)
    with pytest.raises(SystemExit):
        script.set_up(script.USE)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(script, "install", lambda extras: None)
    script.set_up(script.USE)
    assert [path.name for path in tmp_path.iterdir()] == [Path(script.stamp(script.USE)).name]
