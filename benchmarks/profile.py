"""Where the time goes: `python -m benchmarks.profile` prints what dominates a start and a bulk requeue."""

from __future__ import annotations

import cProfile
import io
import pstats
import re
import subprocess
import sys
from collections import Counter

from benchmarks.bulk import Bench
from benchmarks.data import CACHE, async_tasks
from benchmarks.startup import INSTALLED, RETRIAGE

_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s*(\S+)")
_SHOWN = 25
_PLACES = re.compile(r"\S*/(?=(?:site-packages|console|plugins|python3\.\d+)/)")


def main() -> None:
    print(startup())
    print(requeue())


def startup() -> str:
    """Import time of `retriage list` by distribution, and the modules that take longest by themselves."""
    path = async_tasks(200_000)
    config = CACHE / "config.yaml"
    config.write_text(f"backends:\n  queue: {{plugin: sqlite_queue, url: 'sqlite:///{path.absolute()}'}}\n")
    config.chmod(0o600)
    command = [sys.executable, "-X", "importtime", RETRIAGE, "--config", str(config), "list", "--format", "jsonl"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=INSTALLED).stderr
    modules = {module: int(took) for took, module in _LINE.findall(said)}
    tops: Counter[str] = Counter()
    for module, took in modules.items():
        tops[module.partition(".")[0]] += took
    whole = sum(modules.values())
    lines = [f"{100 * took / whole:5.1f} %  {name}" for name, took in tops.most_common(12)]
    slowest = sorted(modules.items(), key=lambda pair: -pair[1])[:_SHOWN]
    each = [f"{100 * took / whole:5.1f} %  {module}" for module, took in slowest]
    return "\n".join(["Importing for `retriage list`, by distribution:", *lines, "", "By module, itself:", *each, ""])


def requeue() -> str:
    """Propose and carry out 20 000 items on SQLite: the functions that take longest by themselves."""
    bench = Bench(async_tasks(200_000), "profiled")
    parts = []
    profiler = cProfile.Profile()
    plan = profiler.runcall(bench.propose)
    parts.append(f"Proposing {plan.changes} items:\n{_hottest(profiler)}")
    profiler = cProfile.Profile()
    profiler.runcall(bench.carry_out, plan)
    parts.append(f"Carrying them out:\n{_hottest(profiler)}")
    bench.close()
    return "\n".join(parts)


def _hottest(profiler: cProfile.Profile) -> str:
    out = io.StringIO()
    stats = pstats.Stats(profiler, stream=out)
    whole = sum(took for _, _, took, _, _ in stats.stats.values())  # type: ignore[attr-defined]
    rows = sorted(stats.stats.items(), key=lambda pair: -pair[1][2])[:_SHOWN]  # type: ignore[attr-defined]
    lines = [
        f"{100 * took / whole:5.1f} %  {calls:>8} calls  {_PLACES.sub('', file)}:{name}"
        for (file, _, name), (_, calls, took, _, _) in rows
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
