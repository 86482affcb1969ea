"""Runs Procrastinate's own worker. Usage: procrastinate_worker.py URL; it ends when nothing is due any more."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import procrastinate


async def main(url: str) -> None:
    connector = procrastinate.PsycopgConnector(conninfo=url)
    app = procrastinate.App(connector=connector)

    @app.task(name="mail", pass_context=True)  # type: ignore[untyped-decorator,unused-ignore]
    async def mail(context: Any) -> None:
        job = str(context.job.id)
        await connector.execute_query_async("INSERT INTO ran (job) VALUES (%(job)s)", job=job)
        if await connector.execute_query_all_async("DELETE FROM deadly WHERE job = %(job)s RETURNING job", job=job):
            os.kill(os.getpid(), signal.SIGKILL)
        if await connector.execute_query_all_async("SELECT job FROM failing WHERE job = %(job)s", job=job):
            raise RuntimeError("the card was declined")

    async with app.open_async():
        await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False, concurrency=4)


asyncio.run(main(*sys.argv[1:]))
