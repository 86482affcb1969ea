"""Runs PgQueuer's own worker. Usage: pgqueuer_worker.py URL; it ends when its standard input is closed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta

import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import PsycopgDriver


async def main(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        queue = PgQueuer(PsycopgDriver(connection))

        @queue.entrypoint("mail", on_failure="hold")
        async def mail(job):
            await connection.execute("INSERT INTO ran (job) VALUES (%s)", [str(job.id)])
            found = await connection.execute("DELETE FROM deadly WHERE job = %s RETURNING 1", [str(job.id)])
            if await found.fetchone():
                os.kill(os.getpid(), signal.SIGKILL)
            found = await connection.execute("SELECT 1 FROM failing WHERE job = %s", [str(job.id)])
            if await found.fetchone():
                raise RuntimeError("the card was declined")

        def stop() -> None:
            sys.stdin.read()
            queue.shutdown.set()

        ending = asyncio.get_running_loop().run_in_executor(None, stop)
        await queue.run(
            dequeue_timeout=timedelta(seconds=0.02),
            heartbeat_timeout=timedelta(hours=1),
            max_concurrent_tasks=40,  # no more are lost when it is killed
        )
        await ending


asyncio.run(main(*sys.argv[1:]))
