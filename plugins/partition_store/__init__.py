"""Partitions: their state in SQL, their raw data as immutable runs on disk or in S3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugins.partition_store.backend import PartitionStore

__all__ = ["PartitionStore"]


def __getattr__(name: str) -> Any:
    """Load the backend when it is needed: `retriage --help` reads only the options of `commands`."""
    if name != "PartitionStore":
        raise AttributeError(name)
    from plugins.partition_store.backend import PartitionStore

    return PartitionStore
