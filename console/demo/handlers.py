"""The handlers of the demo's workers: what happens when a system tries an item again.

The payment provider has recovered, so the payments it throttled succeed; a few of them fail with a new error, because
their card has expired meanwhile. The mail key is still expired and the column still renamed, so those items fail again
with the same error. Each handler takes a moment, as real work would.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random
from typing import Any

from console.demo import incidents
from console.demo.fulfilment import STEPS
from console.demo.jobs import CONTACT, MAIL, PDF
from console.demo.mail import RECEIPT
from console.demo.payments import DECLINED, EXPIRED
from console.demo.warehouse import BROKEN_QUERY
from plugins.partition_store.sink import Partition

_chance = Random()


class Failure(Exception):
    """An error as its system stores it: the queues put the code before the text."""

    def __init__(self, error: str) -> None:
        self.code, _, text = error.partition(": ")
        super().__init__(text)


def _work(least: float = 0.05, most: float = 0.25) -> None:
    time.sleep(least + (most - least) * _chance.random())


def payments(_type: str, payload: Mapping[str, Any]) -> None:
    _work()
    order = str(payload.get("entity_id"))
    if order.endswith(DECLINED):
        raise Failure(incidents.declined(_chance))
    if order.endswith(EXPIRED):
        raise Failure(incidents.card_expired(_chance))


def jobs(function: str, payload: Mapping[str, Any]) -> None:
    _work()
    if function == MAIL:
        raise Failure(incidents.api_key_expired(_chance))
    if function == PDF:
        raise Failure(incidents.column_renamed(_chance))
    if function == CONTACT and str(payload.get("args")).endswith("7]"):
        raise Failure(incidents.timed_out(_chance))


def mail(function: str, _payload: Mapping[str, Any]) -> None:
    _work()
    if function == RECEIPT:
        raise Failure(incidents.api_key_expired(_chance))


def analyses(_pipeline: str, analysis: Mapping[str, Any]) -> None:
    _work(0.02, 0.1)
    if analysis["id"] % 4 == 0:
        raise RuntimeError(incidents.model_unavailable(_chance))


def fulfilment(step: str, _details: Mapping[str, Any]) -> str:
    _work(0.1, 0.4)
    if step == STEPS[2]:
        raise RuntimeError(incidents.carrier_down(_chance))
    return "ok"


def warehouse(partition: Partition, _metadata: Mapping[str, Any]) -> None:
    _work()
    if partition.query_name == BROKEN_QUERY and _metadata.get("schema_version") == "v8":
        raise RuntimeError(incidents.column_renamed(_chance))
