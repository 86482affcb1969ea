"""What the RQ workers of the tests run. Each execution leaves a line in a list that the tests read.

    python -m tests.plugins.redis.rq_app URL      runs RQ's own workers, one after another, until the queue is empty
"""

from __future__ import annotations

import os
import signal
import sys
import time

import redis
from rq import Queue, SimpleWorker

EXECUTIONS, OUTCOMES = "test:executions", "test:outcomes"
ERRORS = {"timeout": "upstream timed out", "declined": "the card was declined"}


def note(name: str) -> redis.Redis:
    client = redis.Redis.from_url(os.environ["TEST_REDIS"])
    client.rpush(EXECUTIONS, f"{name} {time.time()}")
    return client


def work(name: str) -> str:
    """Fails as long as the key `test:broken` exists."""
    if note(name).exists("test:broken"):
        raise ValueError(f"upstream said 503 for {name}")
    return name


def sleep(name: str, seconds: float) -> None:
    note(name)
    time.sleep(seconds)


def outcome_of(name: str) -> str:
    """How the execution of a job ends: every thirtieth kills its worker, the others succeed or fail in turn."""
    number = int(name[1:])
    return "died" if number % 30 == 15 else ("done", "done", "done", "done", "timeout", "declined", "timeout")[number % 7]


def decide(name: str) -> None:
    kind = outcome_of(name)
    with redis.Redis.from_url(os.environ["TEST_REDIS"]) as client:
        client.rpush(OUTCOMES, f"{name} {kind}")
    if kind == "died":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind != "done":
        raise RuntimeError(ERRORS[kind])


def work_off(url: str) -> None:
    os.environ["TEST_REDIS"] = url
    while True:
        worker = os.fork()
        if worker == 0:
            with redis.Redis.from_url(url) as client:
                SimpleWorker([Queue(connection=client)], connection=client).work(burst=True, logging_level="CRITICAL")
            os._exit(0)
        if os.waitpid(worker, 0)[1] == 0:
            return


if __name__ == "__main__":
    work_off(sys.argv[1])
