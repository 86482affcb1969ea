"""Partitions: their state in SQL, their raw data as immutable runs on disk or in S3."""

from plugins.partition_store.backend import PartitionStore

__all__ = ["PartitionStore"]
