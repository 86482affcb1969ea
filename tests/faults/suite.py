"""Promises whose trials are tests of their own: they are run here, and counted."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.faults.processes import ROOT

AUDIT = (
    "tests/test_readonly.py", "tests/trail/test_read_only.py", "tests/trail/test_postgres_faults.py", "tests/ui/test_override.py",
    "tests/cli/test_writes.py", "tests/cli/test_state.py", "tests/plugins/file_queue/test_requeue.py",
    "tests/plugins/partition_store/test_control.py", "tests/plugins/partition_store/test_actions.py",
    "tests/plugins/postgres_analyses/test_requeue.py",
)
FROZEN = ("tests/ui/test_frozen.py",)
RAW_DATA = ("tests/plugins/partition_store/test_raw_data.py",)


@dataclass
class Suite:
    """Every trial must pass, and there must be some."""

    trials: int = 0
    failed: int = 0
    said: str = ""

    @property
    def ok(self) -> bool:
        return self.trials > 0 and not self.failed


def run(tests: tuple[str, ...], named: str = "") -> Suite:
    """Run the tests with one of these words in their name or in the name of their file."""
    with tempfile.TemporaryDirectory(prefix="retriage-suite-") as folder:
        report = Path(folder) / "report.xml"
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--all", f"--junit-xml={report}", "-k", named, *tests],
            cwd=ROOT, text=True, capture_output=True,
        )
        if not report.exists():
            return Suite(0, 1, ran.stdout + ran.stderr)
        (found,) = ElementTree.parse(report).getroot().iter("testsuite")
    count = {name: int(found.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    missed = count["failures"] + count["errors"] + count["skipped"]
    return Suite(count["tests"], missed or int(ran.returncode != 0), ran.stdout if missed else "")
