"""Proposes and carries out a tenth of so many rows; says what the process needed at most, in megabytes."""

from __future__ import annotations

import sys

from benchmarks.bulk import Bench
from benchmarks.data import async_tasks
from benchmarks.measure import peak_memory

if __name__ == "__main__":
    bench = Bench(async_tasks(int(sys.argv[1])), "memory")
    bench.carry_out(bench.propose())
    bench.close()
    print(peak_memory())
