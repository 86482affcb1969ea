"""Promise: every refusal is on the trail with a name, and so is every request to a running override."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.core.confirm import Limits
from console.core.faults import Fault, NotNarrowed, Refused, TooMany
from console.core.operations import Operations
from console.core.override import Request
from console.core.plan import Matching
from console.core.query import Filter
from tests.cli.place import Place, failed
from tests.faults.world import KEEP, ORIGIN, WHO, confirm, matching, world_in
from tests.trail.world import YES, begun, trail_at


def refusals(console: Operations) -> list[tuple[str, str]]:
    return [(record.body["why"], record.body["by"]) for record in console.trail.records() if record.kind == "refusal"]


def test_a_selection_that_is_too_large_or_not_narrowed(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(30)
        console = world.console()
        console._who, console._origin = WHO, ORIGIN
        console.limits = Limits(max_items=5)
        with pytest.raises(TooMany):
            console.propose(matching("condition:terminal"), KEEP)
        with pytest.raises(NotNarrowed):
            console.propose(Matching(Filter()), KEEP)
        assert refusals(console) == [("TooMany", str(WHO)), ("NotNarrowed", str(WHO))]
        assert [record.body["selection"] for record in console.trail.records()] == ["condition:terminal", "everything that needs attention"]


def test_requests_that_cannot_be_followed(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(5)
        console = world.console()
        console._who, console._origin = WHO, ORIGIN
        plan = console.propose(matching("condition:terminal"), KEEP)
        override = console.carry_out(plan, confirm(plan))
        for attempt in (lambda: console.stop(override.override_id), lambda: console.carry_out(plan, confirm(plan))):
            with pytest.raises(Refused):
                attempt()
        undo = console.undo(override.override_id)
        undone = console.carry_out(undo, confirm(undo))
        with pytest.raises(Fault):
            console.undo(undone.override_id)
        assert [why for why, _ in refusals(console)] == ["Refused", "PlanStale", "PlanStale"]
        assert all(by == str(WHO) for _, by in refusals(console))


def test_nothing_is_recorded_in_read_only_mode(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(5)
        console = world.console(read_only=True)
        console.limits = Limits(max_items=1)
        with pytest.raises(TooMany):
            console.propose(matching("condition:terminal"), KEEP)
        assert console.trail.records() == []


@pytest.mark.parametrize("arguments", [("plan",), ("requeue", "--reason", "r"), ("plan", "--where", "condition:terminal")])
def test_on_the_command_line(place: Place, arguments: tuple[str, ...]) -> None:
    place.queue("jobs", *(failed(str(n)) for n in range(30)))
    place.console = "  max_items: 10\n"
    assert place.run(*arguments).code == 3
    (record,) = [json.loads(line) for line in place.run("trail", "list", "--format", "jsonl").out.splitlines()]
    assert record["kind"] == "refusal"
    assert record["body"]["why"] in ("TooMany", "NotNarrowed")
    assert record["body"]["by"]


def test_a_stop_by_somebody_else_is_recorded_with_their_name(tmp_path: Path) -> None:
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        _, owner = begun(trail)
        other = YES.who._replace(login="bob", claimed="")
        for request in (Request.PAUSE, Request.CONTINUE, Request.STOP):
            trail.ask("op1", request, other, YES.origin)
        asked = [(record.body["request"], record.body["by"]) for record in trail.records() if record.kind == "requested"]
        assert asked == [("pause", "bob"), ("continue", "bob"), ("stop", "bob")]
        assert trail.beat("op1", owner, trail._clock.now()) is Request.STOP
        assert trail.verify().what == ""
