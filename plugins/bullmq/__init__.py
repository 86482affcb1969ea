"""BullMQ (Node.js): jobs in Redis."""

from plugins.bullmq.backend import BullMq

__all__ = ["BullMq"]
