"""RQ (Python): jobs in Redis."""

from plugins.rq.backend import RqQueues

__all__ = ["RqQueues"]
