"""The workflows, hooks and templates of the repository agree with the scripts they stand for."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
NO_SECRETS = re.compile(r"secrets\.|token:|password", re.I)


def load(path: Path) -> Any:
    # BaseLoader: `on` stays text instead of becoming True.
    return yaml.load(path.read_text(), yaml.BaseLoader)


def commands(job: Any) -> list[str]:
    return [step["run"].strip() for step in job["steps"] if "run" in step]


def test_ci_runs_exactly_the_ci_script_on_every_python() -> None:
    workflow = load(GITHUB / "workflows/ci.yml")
    assert set(workflow["on"]) == {"push", "pull_request"}
    (job,) = workflow["jobs"].values()
    assert commands(job) == [".ci/run"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    (setup,) = [step for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"


def test_the_oldest_python_is_the_one_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (job,) = load(GITHUB / "workflows/ci.yml")["jobs"].values()
    assert project["requires-python"] == f">={job['strategy']['matrix']['python'][0]}"


def test_a_release_is_tested_built_tried_and_published_without_a_secret() -> None:
    workflow = load(GITHUB / "workflows/release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert ".ci/run" in commands(build)
    assert any(command.endswith("-m build") for command in commands(build))
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert not commands(publish)
    for path in (GITHUB / "workflows").iterdir():
        assert not NO_SECRETS.search(path.read_text().replace("id-token:", "")), path.name


def test_workflows_may_only_read_unless_they_say_so() -> None:
    for path in (GITHUB / "workflows").iterdir():
        assert load(path)["permissions"] == {"contents": "read"}, path.name


def test_the_hooks_are_the_checks_of_run() -> None:
    (local,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    entries = [hook["entry"] for hook in local["hooks"]]
    checks = runpy.run_path(str(ROOT / "run"))["CHECKS"]
    assert entries == [" ".join([f".venv/bin/{command[0]}", *command[1:]]) for command in checks]
    assert all(hook["language"] == "system" and hook["pass_filenames"] == "false" for hook in local["hooks"])


@pytest.mark.parametrize("path", sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_issue_templates_are_forms(path: Path) -> None:
    form = load(path)
    if path.name == "config.yml":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_no_lock_file_is_kept() -> None:
    locks = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock", "requirements.txt"}
    assert not [path for path in tracked() if path.name in locks]


def test_text_files_are_as_the_editorconfig_says() -> None:
    wrong = []
    for path in tracked():
        if path.suffix in (".png", ".raw", ".svg", ".ambr"):
            continue
        data = path.read_bytes()
        trailing = re.search(rb"[ \t]+$", data, re.M)
        if b"\r\n" in data or trailing or (data and not data.endswith(b"\n")):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


def test_the_package_claims_the_pythons_that_ci_tries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = [line.rpartition(" :: ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    (job,) = load(GITHUB / "workflows/ci.yml")["jobs"].values()
    assert claimed == job["strategy"]["matrix"]["python"]
