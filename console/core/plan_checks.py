"""Checks of a stored plan: it is the one that was shown and confirmed, and it is not too old."""

from __future__ import annotations

from datetime import datetime

from console.core.advice import Advice, Step
from console.core.faults import NoSuchPlan, PlanAltered, PlanExpired
from console.core.override import Override
from console.core.plan import FIRST_SKIPPED, Digests, Plan, PlanHash
from console.core.ports import Trail, latest_time
from console.core.text import duration

_HASH_DIGITS = 64


def altered(what: str) -> PlanAltered:
    """The fault for a plan that is not the one it should be."""
    return PlanAltered(what, fix="Make a new plan; do not apply this one.", advice=Advice(Step.VERIFY_TRAIL))


def recorded_plan(trail: Trail, plan_id: str) -> Plan:
    """A plan by its id or hash. `PlanAltered` unless it is the one that was recorded."""
    whole = _is_hash(plan_id)
    plan = trail.plan(Plan.id_of(plan_id) if whole else plan_id)
    recorded = trail.planned(plan.id)
    if recorded is None:
        raise NoSuchPlan(f"{plan.id} is a draft that was never recorded", fix="Make a new plan.")
    shown = plan_id if whole else plan.hash
    if recorded != (shown, plan.expires_at) or shown != plan.hash:
        raise altered(plan.id)
    return plan


def require_unaltered(trail: Trail, plan: Plan) -> Digests:
    """Require that the stored rows of a plan are those of its hash. Returns the digests of its blocks."""
    hash, digests = PlanHash(), {}
    for first, last in ((0, plan.changes - 1), (FIRST_SKIPPED, -1)):
        for block in trail.blocks(plan.id, first, last):
            hash.add(block)
            digests[block.first] = block.digest()
    if hash.seal(plan) != plan.hash:
        raise altered(plan.id)
    return digests


def require_plan_of(trail: Trail, plan: Plan, override: Override) -> None:
    """Require that the override has the plan that was confirmed. The plan comes from a table that could be edited; the
    confirmation is a record."""
    if plan.hash != trail.confirmed_hash(override.override_id):
        raise altered(f"{override.override_id} was confirmed for another plan than {plan.id}")


def require_unexpired(trail: Trail, end: datetime, now: datetime) -> None:
    """Require that a plan is not too old, by the last record too: this machine's clock may have been set back."""
    expired = f"The plan expired at {end:%H:%M:%S}Z"
    if now >= end:
        raise PlanExpired(expired, fix="Make a new plan.")
    for last in trail.newest(limit=1):
        latest = latest_time(last.at, last.body)
        if latest >= end:
            clock = f"this machine's clock is {duration(latest - now)} behind the trail's last record"
            raise PlanExpired(f"{expired}, and {clock}", fix="Set the clock, then make a new plan.")


def _is_hash(text: str) -> bool:
    return len(text) == _HASH_DIGITS and all(char in "0123456789abcdef" for char in text)
