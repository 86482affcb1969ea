"""The folders for config and state, by the XDG rules on every system. Nothing else looks them up."""

from __future__ import annotations

from pathlib import Path


def config_folder() -> Path:
    """`~/.config/retriage`, unless XDG_CONFIG_HOME names another place."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_config_path


def state_folder() -> Path:
    """`~/.local/state/retriage`, unless XDG_STATE_HOME names another place: trail, demo, saved views, crash files."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_state_path
