"""Programs from Debian packages, unpacked below the virtual environment: nothing is installed on the machine."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(sys.prefix) / "debian"


class Unavailable(Exception):
    """The packages cannot be had here; says why."""


@cache
def unpacked(*packages: str) -> Path:
    """The root folder of these packages with what they depend on, as far as the machine does not have it."""
    root = FOLDER / "-".join(packages)
    done = root / ".unpacked"
    if not done.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / ".lock").open("w") as lock:  # test processes start together
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _unpack(packages, root)
                done.touch()
    return root


def libraries(root: Path) -> dict[str, str]:
    """The environment in which programs of this root find their libraries."""
    folder = root / "usr/lib" / f"{platform.machine()}-linux-gnu"
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{root / 'lib' / folder.name}"}


def _unpack(packages: tuple[str, ...], root: Path) -> None:
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        raise Unavailable("no apt on this machine")
    downloads = root.with_suffix(".debs")
    downloads.mkdir(parents=True, exist_ok=True)
    try:
        _download(packages, downloads)
    except Unavailable:  # the machine's lists of packages are old, or there are none
        lists = FOLDER / "lists"
        lists.mkdir(exist_ok=True)
        own_lists = ("-o", f"Dir::State::lists={lists}", "-o", "Debug::NoLocking=1")
        _output("apt-get", "update", "-qq", *own_lists)
        _download(packages, downloads, *own_lists)
    for archive in downloads.glob("*.deb"):
        subprocess.run(["dpkg", "-x", archive, root], check=True, timeout=300)
    shutil.rmtree(downloads)


def _download(packages: tuple[str, ...], folder: Path, *options: str) -> None:
    """These packages, and what apt-get would install with them here."""
    simulated = _output("apt-get", "install", "--simulate", "--no-install-recommends", *options, *packages)
    wanted = dict.fromkeys((*packages, *re.findall(r"^Inst (\S+)", simulated, re.M)))
    _output("apt-get", "download", "-qq", *options, *wanted, folder=folder)


def _output(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:2])}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout
