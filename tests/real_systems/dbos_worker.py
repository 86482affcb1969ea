"""Runs DBOS' own executor. Usage: dbos_worker.py add URL COUNT | work URL | status URL; work ends when its standard input is
closed. Of the workflows that `add` makes, a third ends with an error and a third is given up after too many recoveries."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

import psycopg
from dbos import DBOS, SetWorkflowID

AT_ONCE = threading.BoundedSemaphore(8)
"""The server has not as many connections as DBOS has threads."""
command, url = sys.argv[1:3]
DBOS(config={"name": "shop", "system_database_url": url, "application_version": "v1", "run_admin_server": False,
             "log_level": "CRITICAL"})


@DBOS.workflow(max_recovery_attempts=3)
def mail(n: int) -> int:
    if n % 3 == 1:
        raise ValueError(f"upstream said 503 for {n}")
    with AT_ONCE, psycopg.connect(url, autocommit=True) as connection:
        id = [DBOS.workflow_id]
        connection.execute("INSERT INTO ran (job) VALUES (%s)", id)
        if connection.execute("DELETE FROM deadly WHERE job = %s RETURNING 1", id).fetchone():
            os.kill(os.getpid(), signal.SIGKILL)
        if connection.execute("SELECT 1 FROM failing WHERE job = %s", id).fetchone():
            raise ValueError("the card was declined")
    return n


DBOS.launch()
if command == "add":
    DBOS.register_queue("mail", polling_interval_sec=0.1)
    handles = []
    for n in range(int(sys.argv[3])):
        with SetWorkflowID(f"workflow-{n}"):
            handles.append(DBOS.enqueue_workflow("mail", mail, n))
    for handle in handles:
        try:
            handle.get_result()
        except ValueError:
            continue
elif command == "work":
    sys.stdin.read()
else:
    found = {one.workflow_id: [one.status, one.name, one.recovery_attempts, None if one.error is None else str(one.error)]
             for one in DBOS.list_workflows()}
    sys.stdout.write(json.dumps(found))
DBOS.destroy()
