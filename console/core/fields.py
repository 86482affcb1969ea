"""An item as data: the same record in every format a command prints and the console exports."""

from __future__ import annotations

from typing import Any

from console.core.item import Item

FIELDS = (
    "key", "backend", "id", "type", "native_status", "condition", "attempts", "max_attempts", "next_retry_at",
    "will_run_again", "why", "error", "signature", "recoverable", "created_at", "updated_at",
)


def record(item: Item) -> dict[str, Any]:
    """The values of the fields, in their order."""
    verdict = item.verdict
    return {
        "key": str(item.key),
        "backend": item.key.backend,
        "id": item.key.id,
        "type": item.type,
        "native_status": item.native_status,
        "condition": verdict.condition.value,
        "attempts": item.attempts,
        "max_attempts": item.max_attempts,
        "next_retry_at": verdict.next_retry_at,
        "will_run_again": verdict.will_run_again,
        "why": verdict.why,
        "error": item.error,
        "signature": item.signature,
        "recoverable": verdict.recoverable,
        "created_at": item.created_at,
        "updated_at": item.updated_at,
    }
