"""The start-up check that the packages `console` and `plugins` both belong to Retriage.

Other distributions use these package names too. If one of them is imported instead, its code would receive the
backends' secrets, so Retriage refuses to start.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from console.core.faults import Fault


class MixedInstall(Fault):
    """Retriage is mixed up with another package of the same name"""

    exit_code = 2
    prefixed = True


def require_own_packages() -> None:
    """Raise MixedInstall unless both packages are in the same folder. Imports neither of them."""
    console = _folder(find_spec("console"))
    plugins = _folder(find_spec("plugins"))
    if console is not None and console == plugins:
        return
    found = f"in {plugins}" if plugins else "not installed as a package"
    raise MixedInstall(
        f"`console` is in {console}, but `plugins` is {found}",
        fix="Install Retriage on its own: `pipx install retriage`, `uv tool install retriage` or a new venv.",
    )


def _folder(spec: ModuleSpec | None) -> Path | None:
    """The folder that contains the package; None for a plain folder or a single module, which are not ours."""
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).resolve().parent.parent
