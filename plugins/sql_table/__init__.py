"""Any SQL queue by a mapping, with presets for the queues people run."""

from plugins.sql_table.backend import SqlTable

__all__ = ["SqlTable"]
