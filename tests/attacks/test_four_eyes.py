"""Promise: where two people are needed, one person cannot do it, whatever they claim, edit or replay.

On a PostgreSQL trail with a role for each person the database itself keeps it. What is only a guard rail is found by
`trail verify`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from console.core.access import AccessRules, Approval, Compare, Limit
from console.core.approvals import Approvals
from console.core.confirm import Who
from console.core.faults import Fault, NotAllowed, PlanAltered, PlanStale
from console.core.operations import Operations
from console.core.override import OverrideState
from console.core.plan import Plan
from console.core.proposals import Proposal
from console.core.runner import Runner
from console.report.audit import audit
from console.report.markdown import write_markdown
from console.testing import StopFlag
from console.trail.leases import owner_token
from console.trail.record import Kind, next_record, stamp
from console.trail.store import open_trail
from tests.core.test_runner import Waiting
from tests.faults.world import ORIGIN, RESET, World, confirm, matching, world_in
from tests.plugins.postgres_analyses.server import database, server
from tests.ui.world import session as empty_session

RULE = AccessRules(approvals=(Approval(("queue",), 10, Compare.ROLE, "config.yaml:9"),))
BY_LOGIN = AccessRules(approvals=(Approval(("queue",), 10, Compare.LOGIN, "config.yaml:9"),))
ANN, BOB = Who(1000, "ann"), Who(1001, "bob")
GRANTS = "GRANT USAGE ON SCHEMA retriage_trail TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA retriage_trail TO {role}"


@dataclass
class Team:
    """A queue, and a shared trail on which each person has a role of their own."""

    world: World
    url: str
    roles: dict[str, str]
    opened: list[Any]

    def seat(self, who: Who, rules: AccessRules = RULE, role: str | None = None) -> tuple[Operations, Approvals]:
        trail = open_trail(self.roles[role or who.login], read_only=False, anchor=None, clock=self.world.clock)
        backend = self.world.queue.open(clock=self.world.clock)
        self.opened += [trail, backend]
        operations = Operations({"queue": backend}, trail, self.world.clock, owner=owner_token(), rules=rules, who=who, origin=ORIGIN)
        return operations, Approvals(operations, self.world.clock, who, ORIGIN)

    def submitted(self, who: Who = ANN, rules: AccessRules = RULE, limit: int = 10) -> tuple[Plan, Proposal]:
        operations, approvals = self.seat(who, rules)
        plan = operations.propose(matching("condition:terminal", limit=limit), RESET)
        return plan, approvals.submit(plan, "provider is back")

    def sql(self, text: str, role: str | None = None) -> list[Any]:
        """As the owner of the trail, or as a person."""
        with psycopg.connect(self.url if role is None else self.roles[role], autocommit=True) as connection:
            found = connection.execute(text)  # type: ignore[call-overload]
            return found.fetchall() if found.description else []

    def problem(self) -> str:
        return str(self.seat(ANN)[0].trail.verified().what)

    def refusals(self) -> list[str]:
        return [record.body["why"] for record in self.seat(ANN)[0].trail.records() if record.kind == "refusal"]


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    with database() as url, world_in(tmp_path) as world:
        world.queue.fill(30)
        world.queue.forget()
        parsed, opened = sa.make_url(url), []
        owner = open_trail(url, read_only=False, anchor=None, clock=world.clock)
        owner.refuse({"why": "creates the trail"}, world.clock.now())
        owner.close()
        roles = {}
        for name in ("ann", "bob"):
            role = f"{name}_{parsed.database}"
            server().execute(f"CREATE ROLE {role} LOGIN")
            roles[name] = parsed.set(username=role).render_as_string(hide_password=False)
        team = Team(world, url, roles, opened)
        for name in roles:
            team.sql(GRANTS.format(role=f"{name}_{parsed.database}"))
        yield team
        for one in opened:
            one.close()
        for name in roles:
            team.sql(f"DROP OWNED BY {name}_{parsed.database}; DROP ROLE {name}_{parsed.database}")


def test_two_people_can(team: Team) -> None:
    _, proposal = team.submitted()
    override = team.seat(BOB)[1].approve(proposal, 10)
    assert (override.state, override.counts) == (OverrideState.FINISHED, {"applied": 10})
    assert (override.who, override.proposed_by) == ("bob", "ann")
    assert team.problem() == ""


def test_the_audit_report_names_both_people(team: Team) -> None:
    _, proposal = team.submitted()
    with pytest.raises(NotAllowed):
        team.seat(ANN)[1].approve(proposal, 10)
    operations, approvals = team.seat(BOB)
    override = approvals.approve(proposal, 10, reason="checked with the provider")
    entries = tuple(operations.backends.values())
    session = replace(empty_session(entries, team.world.clock), trail=operations.trail, operations=operations)
    text = StringIO()
    write_markdown(audit(session, override.override_id), text)
    report = text.getvalue()
    for said in (
        "Who: bob", "Why: checked with the provider", "database role: bob\\_t\\_",
        "## The proposal that this approved", "Proposed by: ann", "Why: provider is back", "login: ann", "| submitted | ann |", "| refusal | ann |",
    ):
        assert said in report, said


def test_one_cannot_apply_directly_nor_approve_their_own(team: Team) -> None:
    operations, approvals = team.seat(ANN)
    plan = operations.propose(matching("condition:terminal", limit=10), RESET)
    with pytest.raises(NotAllowed, match=r"config.yaml:9: Somebody else must approve a plan of 10 items or more in queue"):
        operations.carry_out(plan, _by(ANN, plan))
    proposal = approvals.submit(plan, "provider is back")
    with pytest.raises(NotAllowed, match=r"config.yaml:9: ann proposed this, so somebody else must approve it"):
        approvals.approve(proposal, 10)
    assert team.world.queue.touched() == set()
    assert team.refusals()[1:] == ["NotAllowed"] * 2
    small = operations.propose(matching("condition:terminal", limit=9), RESET)
    assert operations.carry_out(small, _by(ANN, small)).counts == {"applied": 9}, "below the number one person is enough"


def _by(who: Who, plan: Plan) -> Any:
    return replace(confirm(plan), who=who)


WAYS: dict[str, tuple[Who, str]] = {
    "the same login under another claim": (ANN._replace(claimed="bob"), "ann"),
    "another login with the same database role": (BOB, "ann"),
    "the same login with another database role": (ANN, "bob"),
    "root in a user namespace": (Who(0, "root", in_namespace=True), "bob"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_name_is_not_a_second_person(team: Team, way: str) -> None:
    _, proposal = team.submitted()
    who, role = WAYS[way]
    with pytest.raises(NotAllowed):
        team.seat(who, role=role)[1].approve(proposal, 10)
    assert team.world.queue.touched() == set()
    assert team.refusals()[-1] == "NotAllowed"
    assert team.problem() == ""


def test_the_database_refuses_even_a_changed_program(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any of our own checks the constraint and the triggers hold."""
    plan, proposal = team.submitted()
    operations, approvals = team.seat(ANN)
    monkeypatch.setattr("console.core.operations.require_may_approve", lambda *_: None)
    monkeypatch.setattr(Proposal, "role", property(lambda _: "another one"))
    with pytest.raises(Fault, match="somebody_else_approves"):
        approvals.approve(proposal, 10)
    operations.rules = AccessRules()
    monkeypatch.setattr(type(operations.trail), "_require_not_submitted", lambda *_: None)
    with pytest.raises(Fault, match="somebody else must approve this plan"):
        operations.carry_out(plan, _by(ANN, plan))
    assert team.world.queue.touched() == set()


RAW = {
    "decide for another role": "UPDATE retriage_trail.proposal SET decision = 'approved', decided = 9, decided_by = 'bob'",
    "decide for oneself": "UPDATE retriage_trail.proposal SET decision = 'approved', decided = 9, decided_by = session_user",
    "become another proposer": "UPDATE retriage_trail.proposal SET proposer = 'bob'",
    "need nobody": "UPDATE retriage_trail.proposal SET second_person = ''",
    "live longer": "UPDATE retriage_trail.proposal SET expires = '2099-01-01T00:00:00.000000Z'",
    "delete it": "DELETE FROM retriage_trail.proposal",
    "empty it": "TRUNCATE retriage_trail.proposal",
    "propose for another role": "INSERT INTO retriage_trail.proposal (plan_id, seq, expires, proposer, second_person) VALUES ('p1', 1, 'x', 'bob', '')",
}


@pytest.mark.parametrize("way", RAW)
def test_the_table_cannot_be_edited(team: Team, way: str) -> None:
    team.submitted()
    with pytest.raises(psycopg.Error):
        team.sql(RAW[way], role="ann")
    assert team.problem() == ""


@pytest.mark.parametrize("key", ["plan_id", "plan_id\\", "plan\u00e9id"])
def test_a_confirmation_is_not_disguised(team: Team, key: str) -> None:
    """A second key that the trigger could take for the first one hides nothing from it."""
    plan, _ = team.submitted()
    with psycopg.connect(team.roles["ann"]) as raw:
        (seq, prev, role), = raw.execute("SELECT seq, hash, session_user::text FROM retriage_trail.record ORDER BY seq DESC LIMIT 1").fetchall()
        facts = {"session_user": role, "address": "", "at": stamp(datetime.now(UTC))}
        body = {"plan_hash": plan.hash, key: "p0", "plan_id": plan.id, "server": facts}
        row = next_record(prev, seq + 1, Kind.CONFIRMED, team.world.clock.now(), body)
        with pytest.raises(psycopg.errors.RaiseException, match="somebody else must approve this plan"):
            raw.execute("INSERT INTO retriage_trail.record VALUES (%s, %s, %s, %s, %s, %s)", row)
    assert team.problem() == ""


def test_an_approval_cannot_be_replayed(team: Team) -> None:
    plan, proposal = team.submitted()
    operations, approvals = team.seat(BOB)
    approvals.approve(proposal, 10)
    touched = team.world.queue.touched()
    for attempt in (lambda: approvals.approve(proposal, 10), lambda: operations.carry_out(plan, _by(BOB, plan), proposal=proposal)):
        with pytest.raises(PlanStale):
            attempt()
    other, _ = team.submitted()
    with pytest.raises(Fault):
        operations.carry_out(other, _by(BOB, other), proposal=proposal)
    assert team.world.queue.touched() == touched
    assert team.problem() == ""


def test_an_altered_or_exchanged_plan_is_not_approved(team: Team) -> None:
    _, proposal = team.submitted()
    _, other = team.submitted(limit=20)
    team.sql("UPDATE retriage_trail.plan SET body = replace(body, 'reset', 'keep')", role="ann")
    _, approvals = team.seat(BOB)
    for one in (proposal, other):
        with pytest.raises(PlanAltered):
            approvals.approve(one, one.items)
    assert team.world.queue.touched() == set()
    assert team.problem()


def test_an_override_without_the_approval_that_was_demanded_is_found(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard rail: who changes the program steps over it. The rules are on record, so it shows."""
    team.submitted()
    operations, _ = team.seat(ANN)
    plan = operations.propose(matching("condition:terminal", limit=12), RESET)
    monkeypatch.setattr(AccessRules, "require_no_approval", lambda *_: None)
    operations.carry_out(plan, _by(ANN, plan))
    assert "was confirmed without the approval that record" in team.problem()


def test_other_rules_are_on_record_before_they_are_used(team: Team) -> None:
    """The other way over it: a config without the rule. That is recorded first, with who did it."""
    team.submitted()
    operations, _ = team.seat(ANN, AccessRules())
    plan = operations.propose(matching("condition:terminal", limit=12), RESET)
    operations.carry_out(plan, _by(ANN, plan))
    assert team.problem() == ""
    policies = [record.body for record in operations.trail.records() if record.kind == "policy"]
    assert [(len(body["rules"]["approvals"]), body["by"]) for body in policies] == [(1, "ann"), (0, "ann")]
    assert policies[1]["server"]["session_user"].startswith("ann_")


def test_with_one_shared_role_logins_are_compared(team: Team) -> None:
    _, proposal = team.submitted(rules=BY_LOGIN)
    with pytest.raises(NotAllowed):
        team.seat(ANN, BY_LOGIN)[1].approve(proposal, 10)
    override = team.seat(BOB, BY_LOGIN, role="ann")[1].approve(proposal, 10)
    assert override.counts == {"applied": 10}
    assert team.problem() == ""


def test_a_rule_that_is_added_later_binds_open_proposals_too(team: Team) -> None:
    _, proposal = team.submitted(rules=AccessRules())
    with pytest.raises(NotAllowed):
        team.seat(ANN)[1].approve(proposal, 10)
    with pytest.raises(NotAllowed, match=r"The database role ann_\w+ submitted this proposal"):
        team.seat(BOB, role="ann")[1].approve(proposal, 10)
    assert team.world.queue.touched() == set()
    assert team.seat(BOB)[1].approve(proposal, 10).counts == {"applied": 10}
    assert team.problem() == ""


def test_a_clock_that_is_put_ahead_frees_no_limit(team: Team) -> None:
    """Limits go by the server's time: whoever sets their own clock cannot change more."""
    rules = AccessRules(limits=(Limit(("queue",), 12, timedelta(hours=1), "config.yaml:20"),))
    operations, _ = team.seat(ANN, rules)
    first = operations.propose(matching("condition:terminal", limit=10), RESET)
    assert operations.carry_out(first, _by(ANN, first)).counts == {"applied": 10}
    team.world.clock.tick(timedelta(hours=3))
    second = operations.propose(matching("condition:terminal", limit=10), RESET)
    with pytest.raises(NotAllowed, match=r"config.yaml:20: In queue, 12 items may be changed in 1h\. 10 were"):
        operations.carry_out(second, _by(ANN, second))
    assert len(team.world.queue.touched()) == 10


def test_a_runner_carries_out_nothing_that_its_own_rules_demand_an_approval_for(team: Team) -> None:
    """A config without the rule can confirm it and hand it to a runner, which may have more rights than its person."""
    careless, _ = team.seat(ANN, AccessRules())
    plan = careless.propose(matching("condition:terminal", limit=12), RESET)
    unapproved = careless.carry_out(plan, _by(ANN, plan), detached=True)
    own = team.seat(ANN, AccessRules())[1].submit(careless.propose(matching("condition:terminal", limit=11), RESET), "mine")
    self_approved = team.seat(ANN, AccessRules())[1].approve(own, 11, detached=True)
    said: list[str] = []
    operations, _ = team.seat(BOB)
    runner = Runner(operations, Waiting(team.world), BOB, ORIGIN, StopFlag(), said.append)
    runner.run(once=True)
    assert team.world.queue.touched() == set()
    assert [line.split(": ", 1)[1].split(". ")[0] for line in sorted(said, key=lambda line: unapproved.override_id not in line)] == [
        f"config.yaml:9: Override {unapproved.override_id} was confirmed without approval",
        f"config.yaml:9: Override {self_approved.override_id} was approved by its proposer",
    ]
    assert team.refusals()[-2:] == ["NotAllowed"] * 2
    with pytest.raises(NotAllowed):
        operations.resume(unapproved.override_id, BOB, ORIGIN)
    _, proposal = team.submitted()
    team.seat(BOB)[1].approve(proposal, 10, detached=True)
    runner.run(once=True)
    assert len(team.world.queue.touched()) == 10


def test_check_says_what_is_enforced(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.cli.place import Place

    place = Place(team.world.folder, capsys)
    place.sections["queue"] = f'  queue: {{plugin: sqlite_queue, url: "sqlite:///{team.world.queue.path}"}}\n'
    place.console = f'  trail: "{team.roles["ann"]}"\n'
    place.after = "approvals:\n  - {backends: [queue], from: 10}\n"
    found = [json.loads(line) for line in place.run("check").out.splitlines()]
    said = [row["message"] for row in found if row["subject"] == "rules"]
    assert said[0] == "queue: somebody else approves plans of 10 items or more"
    assert "The trail's database refuses an approval by the role that proposed" in said[1]
    team.submitted(rules=BY_LOGIN)
    team.seat(BOB, role="ann")[0].trail.refuse({"facts": {"login": "bob"}}, team.world.clock.now())
    shared = [row for row in map(json.loads, place.run("check").out.splitlines()) if "same database role" in row["message"]]
    assert shared[0]["severity"] == "warning"
    place.after = "approvals:\n  - {backends: [queue], from: 10, compare: login}\n"
    assert "because they share a database role. That prevents mistakes only" in place.run("check").out


def test_check_warns_who_owns_the_trail(team: Team, capsys: pytest.CaptureFixture[str]) -> None:
    """Its role can drop the constraint: for it the wall is a guard rail. What it then approves itself is found."""
    from tests.cli.place import Place

    place = Place(team.world.folder, capsys)
    place.sections["queue"] = f'  queue: {{plugin: sqlite_queue, url: "sqlite:///{team.world.queue.path}"}}\n'
    place.after = "approvals:\n  - {backends: [queue], from: 10}\n"
    for url, warned in ((team.url, True), (team.roles["ann"], False)):
        place.console = f'  trail: "{url}"\n'
        assert ("owns the trail or is a superuser" in place.run("check").out) is warned
    _, proposal = team.submitted()
    team.sql("ALTER TABLE retriage_trail.proposal DROP CONSTRAINT somebody_else_approves")
    operations, _ = team.seat(ANN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("console.core.operations.require_may_approve", lambda *_: None)
        patch.setattr(Proposal, "role", property(lambda _: "another one"))
        plan = team.seat(ANN)[1].plan(proposal)
        operations.carry_out(plan, _by(ANN, plan), proposal=proposal)
    assert "was approved by its proposer" in team.problem()
