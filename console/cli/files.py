"""Files a command writes because an operator named them."""

from __future__ import annotations

import os
from typing import TextIO

from console.core.faults import UsageFault
from console.core.paths import expanded


def new_file(path: str) -> TextIO:
    """A new file that only its owner can read; lines end as they are written."""
    try:
        handle = os.open(expanded(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageFault(f"{path} is already there", fix="Name a new file; nothing is overwritten.") from None
    except OSError as error:
        raise UsageFault(f"{path} cannot be written: {error.strerror}", fix="Name another file.") from None
    return os.fdopen(handle, "w", encoding="utf-8", newline="")
