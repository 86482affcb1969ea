"""Reads and requeues any SQL queue by a mapping. Presets for well-known queues are included."""

from plugins.sql_table.backend import SqlTable

__all__ = ["SqlTable"]
