"""Nobody listens in on the config: a package installed next to ours may hook into pydantic, which sees every secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

LISTENER = """
from pathlib import Path

Path(__file__).with_name("loaded").touch()


class Listener:
    def new_schema_validator(self, *args, **more):
        return None, None, None


listener = Listener()
"""


def test_a_plugin_of_pydantic_exit_stack_us_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    metadata = tmp_path / "listener-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: listener\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[pydantic]\nlistener = listener:listener\n")
    config = tmp_path / "config.yaml"
    config.write_text("console:\n  trail: 'sqlite:////nowhere/trail.db'\nbackends: {}\n")
    config.chmod(0o600)
    surroundings = {name: value for name, value in os.environ.items() if name != "PYDANTIC_DISABLE_PLUGINS"}
    surroundings["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-m", "console", "list", "--config", str(config)]
    ran = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "loaded").exists()
    loads = [sys.executable, "-c", "import pydantic\nclass Model(pydantic.BaseModel):\n    a: int\n"]
    subprocess.run(loads, env=surroundings, check=True, timeout=PATIENCE)
    assert (tmp_path / "loaded").exists()  # elsewhere it is
