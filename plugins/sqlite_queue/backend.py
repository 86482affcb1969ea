"""The contract over an attached SQLite queue of either dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from console.core.advice import Notice
from console.core.backend import Abilities, Throughput
from console.core.capabilities import FoundQueue, SwitchSpec
from console.core.policy import Phase, PolicyOverride
from console.core.ports import Clock, Stop
from console.core.text import parse_duration
from console.sql.backend import QueueTableBackend, found_if_it_fits
from console.sql.conditions import epoch_function
from console.sql.layout import Roles
from console.sql.sqlite import SqliteDatabase, sqlite_path
from console.sql.table import phase_of
from console.sql.times import IsoText
from plugins import _contract_queue as contract
from plugins.sqlite_queue import schema
from plugins.sqlite_queue.engine import AsyncTaskQueue, ContractQueue
from plugins.sqlite_queue.prediction import taken_at_column, taken_at_functions


def _duration(value: Any) -> Any:
    return parse_duration(value) if isinstance(value, str) else value


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    dialect: Literal["async_tasks", "tasks"] = "async_tasks"
    task_types: tuple[str, ...] = Field(default=("ANALYZE_EXECUTED",), min_length=1)
    """The types that the workers of `async_tasks` take; tasks of other types never run."""
    batch: int = Field(default=10, gt=0)
    """How many tasks a worker of `async_tasks` takes each time it runs."""
    every: Annotated[timedelta, BeforeValidator(_duration)] = Field(default=timedelta(minutes=5), gt=timedelta(0))
    """How often a worker of `async_tasks` runs."""
    alarm_above: int = Field(default=50, ge=0)
    """With more PENDING tasks than this, the monitoring of `async_tasks` raises an alarm."""
    handler: str | None = None
    """`package.module:function`, called with each task by `retriage run`."""


class SqliteQueue(QueueTableBackend):
    """An SQLite task queue that belongs to another system."""

    options = Options
    schemes = ("sqlite",)
    database: SqliteDatabase
    time: IsoText
    handler: str | None = None
    _options: Options

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        offered = [
            FoundQueue("analysis-queue", "analysis queue, table async_tasks", {"url": url}),
            FoundQueue("tasks", "contract queue, table tasks", {"url": url, "dialect": "tasks"}),
        ]
        return [queue for one in offered for queue in found_if_it_fits(cls, one, deadline)]

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> SqliteQueue:
        is_async = options.dialect == "async_tasks"
        table, own = schema.TASKS, contract.POLICY
        if is_async:
            throughput = Throughput(options.batch, options.every)
            table, own = schema.async_tasks(options.task_types, throughput), schema.ASYNC_POLICY
        time = IsoText()
        functions = {**epoch_function(time), **taken_at_functions()}
        database = SqliteDatabase(sqlite_path(options.url), read_only=read_only, deadline=deadline, functions=functions)
        backend = cls(name, "sqlite_queue", database, table, policy.over(own), time)
        backend.handler = options.handler
        backend._options = options
        return backend

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        return {
            "analysis queue in SQLite (dialect: async_tasks)": schema.ASYNC_TASKS.abilities,
            "contract queue in SQLite (dialect: tasks)": schema.TASKS.abilities,
        }

    @property
    def offered_switches(self) -> tuple[SwitchSpec, ...]:
        return () if self._options.dialect == "async_tasks" else (contract.INCLUDE_CLAIMED,)

    def _roles(self) -> Roles:
        """The due time is the one at which its workers take a task, which is none for a type that they do not take."""
        table = self.table
        assert table.due is not None
        status, type = table.expression(table.status), table.expression(table.type)
        taken = [status == native for native, meaning in table.statuses.items() if phase_of(meaning) is Phase.READY]
        if self._options.dialect == "async_tasks":
            taken.append(sa.or_(*(type == known for known in self._options.task_types)))
        return replace(super()._roles(), next=sa.case((sa.and_(*taken), taken_at_column(table.expression(table.due)))))

    def plan_warnings(self, changes: int) -> Sequence[Notice]:
        """The analysis queue's own monitoring counts the PENDING tasks."""
        if self._options.dialect != "async_tasks":
            return ()
        ((waiting,),) = self.database.fetch("SELECT count(*) FROM async_tasks WHERE status = 'PENDING'", ())
        alarm = self._options.alarm_above
        if waiting + changes <= alarm:
            return ()
        # A number in front would run together with the count of items that the plan shows there.
        text = f"Its own monitoring raises an alarm above {alarm} PENDING tasks; there would be {waiting + changes}."
        return (Notice(text),)

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        """Work off the queue by its own rules until `stop`."""
        self.require_schema()
        queue: contract.Queue
        if self._options.dialect == "async_tasks":
            runs = self.abilities.throughput
            queue = AsyncTaskQueue(self.database, self.policy, clock, self._options.task_types, runs)
        else:
            queue = ContractQueue(self.database, self.policy, clock)
        return contract.work(queue, handler, clock, stop, log)
