"""XDG places on every system: ~/.config and ~/.local/state unless the environment says otherwise."""

from __future__ import annotations

from pathlib import Path


def config_folder() -> Path:
    from platformdirs.unix import Unix

    return Unix("retriage").user_config_path


def state_folder() -> Path:
    """Where the trail, the demo world and crash files are unless a config says otherwise."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_state_path
