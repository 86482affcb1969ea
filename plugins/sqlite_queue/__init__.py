"""SQLite task queues: the analysis queue (`async_tasks`) and the contract queue (`tasks`)."""

from plugins.sqlite_queue.backend import SqliteQueue

__all__ = ["SqliteQueue"]
