"""Sidekiq (Ruby): jobs in Redis."""

from plugins.sidekiq.backend import SidekiqQueues

__all__ = ["SidekiqQueues"]
