"""The contract queue's file storage: one file per task, its state in the file's name."""

from plugins.file_queue.backend import FileQueue

__all__ = ["FileQueue"]
