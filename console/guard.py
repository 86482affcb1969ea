"""The start guard: `console` and `plugins` must be ours, both from one place.

Other distributions use these package names too. Mixed up, a stranger's code would be asked to open the
backends, so the console refuses to start instead.
"""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from console.core.faults import Fault


class MixedInstall(Fault):
    """Retriage shares its folder with another package of the same name"""

    exit_code = 2


def require_own_packages() -> None:
    """Raise MixedInstall unless both packages lie in the same folder. Imports neither of them."""
    ours = _folder(find_spec("console"))
    theirs = _folder(find_spec("plugins"))
    if ours is not None and ours == theirs:
        return
    found = f"in {theirs}" if theirs else "not installed as a package"
    raise MixedInstall(
        f"`console` is in {ours}, but `plugins` is {found}",
        fix="Install Retriage by itself: `pipx install retriage`, `uv tool install retriage` or a new venv.",
    )


def _folder(spec: ModuleSpec | None) -> Path | None:
    """The folder that holds the package; None for a bare folder or a module, which are not ours."""
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).resolve().parent.parent
