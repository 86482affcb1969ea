"""The contract queue stored as files: one file per task, with its state as the extension."""

from plugins.file_queue.backend import FileQueue

__all__ = ["FileQueue"]
