"""Celery (Python): the results that it keeps in Redis. Reading only."""

from plugins.celery.backend import CeleryResults

__all__ = ["CeleryResults"]
