"""`python -m benchmarks.programs.server_load URL`: a client that keeps one core of a PostgreSQL server busy."""

from __future__ import annotations

import sys

import psycopg


def main() -> None:
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        while True:
            connection.execute("SELECT count(*) FROM generate_series(1, 300000)")


if __name__ == "__main__":
    main()
