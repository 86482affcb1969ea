"""What the config allows an operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    """How much at once, how it is confirmed, and when a canary stops."""

    confirm_from: int = 20
    max_items: int = 10_000
    canary_failure_limit: float = 0.2
    canary_deadline: timedelta = timedelta(minutes=15)
    chunk_target: timedelta = timedelta(milliseconds=50)
