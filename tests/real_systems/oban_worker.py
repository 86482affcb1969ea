"""Runs Oban's own worker. Usage: oban_worker.py install|work URL; work ends when its standard input is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

POOL: list[AsyncConnectionPool] = []


@worker(queue="default")
class Ran:
    async def process(self, job):
        async with POOL[0].connection() as connection:
            await connection.execute("INSERT INTO ran (job) VALUES (%s)", [str(job.id)])
            found = await connection.execute("DELETE FROM deadly WHERE job = %s RETURNING 1", [str(job.id)])
            dies = await found.fetchone() is not None
            found = await connection.execute("SELECT 1 FROM failing WHERE job = %s", [str(job.id)])
            fails = await found.fetchone() is not None
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if fails:
            raise RuntimeError("the card was declined")


async def main(command: str, url: str) -> None:
    async with AsyncConnectionPool(url, open=False, max_size=8) as pool:
        POOL.append(pool)
        if command == "install":
            await install(pool)
            return
        async with Oban(pool=pool, queues={"default": 5}, stager={"interval": 0.2}):
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
