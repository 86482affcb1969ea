"""The user's folders for config, state and cache, by the XDG rules on every system, and how a file in them is replaced.

No other module looks up these folders.
"""

from __future__ import annotations

import os
from pathlib import Path


def config_folder() -> Path:
    """`~/.config/retriage`, unless XDG_CONFIG_HOME names another place."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_config_path


def state_folder() -> Path:
    """`~/.local/state/retriage`, unless XDG_STATE_HOME names another place: trail, demo, saved views, crash files."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_state_path


def cache_folder() -> Path:
    """`~/.cache/retriage`, unless XDG_CACHE_HOME names another place: what can be lost and is then read again."""
    from platformdirs.unix import Unix

    return Unix("retriage").user_cache_path


def is_of_another_user(path: Path) -> bool:
    """Whether a file exists that must not be replaced: two users share its folder."""
    return path.exists() and path.stat().st_uid != os.getuid()


def replace_file(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step: at no time is it incomplete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.unlink(missing_ok=True)  # of a killed process with the same number
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
