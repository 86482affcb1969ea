"""Faults: everything that can go wrong in a way an operator should read.

A fault prints as plain sentences: what happened, then what to do. `detail` is what happened. Most faults print it as it
stands, so it is a whole sentence without its full stop: "Unknown command 'lst'". Faults with `prefixed` set print their
own docstring first: "Cannot connect: connection refused". Without a detail the docstring is the message.

`where` names the place (a backend, a file and line). `fix` is a whole sentence that tells what to do, in words that fit
every front end. `advice` names a step that each front end words itself. `exit_code` is the exit code of a command that
ends with this fault.
"""

from __future__ import annotations

from typing import ClassVar

from console.core.advice import Advice


class Fault(Exception):
    """Retriage could not do this"""

    exit_code: ClassVar[int] = 1
    prefixed: ClassVar[bool] = False
    """Whether the docstring stands before the detail."""

    def __init__(
        self, detail: str = "", *, where: str = "", fix: str = "", advice: Advice | None = None
    ) -> None:
        super().__init__(detail, where, fix)
        self.detail = detail
        self.where = where
        self.fix = fix
        self.advice = advice

    @property
    def message(self) -> str:
        """What happened, in one sentence without a full stop at its end."""
        summary = (type(self).__doc__ or "").strip().splitlines()[0]
        if not self.detail:
            return summary
        return f"{summary}: {self.detail}" if self.prefixed else self.detail

    def __str__(self) -> str:
        text = sentences(self.message, self.fix)
        return f"{self.where}: {text}" if self.where else text


def sentences(message: str, fix: str = "") -> str:
    """What happened and what to do about it, as one text."""
    if not fix:
        return message
    return f"{message} {fix}" if message.endswith((".", "!", "?")) else f"{message}. {fix}"


class UsageFault(Fault):
    """The command cannot be carried out as written"""

    exit_code = 2


class ConfigFault(Fault):
    """The config cannot be used"""

    exit_code = 2


class QueryFault(Fault):
    """The filter has a mistake"""

    exit_code = 2

    def __init__(self, detail: str, *, column: int = 1, fix: str = "") -> None:
        super().__init__(detail, fix=fix)
        self.column = column

    @property
    def message(self) -> str:
        return f"{self.detail} (column {self.column})"


class KeyFault(Fault):
    """Not an item key"""

    exit_code = 2
    prefixed = True


class PluginFault(Fault):
    """The plugin cannot be used"""

    exit_code = 2


class BackendFault(Fault):
    """The system reported an error"""

    prefixed = True


class Unreachable(BackendFault):
    """Cannot connect"""


class WrongSchema(BackendFault):
    """The schema does not match"""


class RowsHidden(BackendFault):
    """Row-level security hides rows"""


class BackendBusy(BackendFault):
    """The system is busy"""


class DeadlineExceeded(BackendFault):
    """Timed out"""


class ReadTooLong(DeadlineExceeded):
    """Takes too long, so it is read only on request"""


class NotPermitted(BackendFault):
    """The system does not permit this"""


class NoSuchItem(Fault):
    """No such item"""

    prefixed = True


class Refused(Fault):
    """Refused"""

    exit_code = 3


class ReadOnlyRefused(Refused):
    """This console is read-only"""

    prefixed = True


class NotConfirmed(Refused):
    """Not confirmed"""

    prefixed = True


class PlanExpired(Refused):
    """The plan has expired"""


class PlanStale(Refused):
    """The plan can no longer be applied"""


class AllSkipped(Refused):
    """Nothing in this plan can be changed"""


class TooMany(Refused):
    """Too many items are selected"""


class NotNarrowed(Refused):
    """This would select everything"""


class NotAllowed(Refused):
    """The rules of the config do not allow this"""


class OverrideRunning(Refused):
    """Another override is running"""

    prefixed = True


class TrailUnavailable(Refused):
    """The trail cannot be used"""

    prefixed = True


class TrailUnreadable(TrailUnavailable):
    """The trail cannot be read"""

    exit_code = 4


class TrailLost(TrailUnavailable):
    """The trail failed while the override was running"""

    exit_code = 1


class TrailBroken(Fault):
    """The trail is broken"""

    exit_code = 5
    prefixed = True


class PlanAltered(Fault):
    """The stored plan was altered"""

    exit_code = 5
    prefixed = True


class NoSuchPlan(Fault):
    """No such plan"""

    exit_code = 2
    prefixed = True


class NoSuchOverride(Fault):
    """No such override"""

    exit_code = 2
    prefixed = True


class NoSuchProposal(Fault):
    """No such proposal"""

    exit_code = 2
    prefixed = True


class LeaseLost(Fault):
    """Another process has taken over this override"""

    prefixed = True


class HistoryUnavailable(Fault):
    """The history cannot be used"""

    prefixed = True
