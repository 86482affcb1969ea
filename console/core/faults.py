"""The Fault family: everything that can go wrong in a way the operator should read.

A fault's docstring is the sentence the operator sees; `detail` says what exactly, `where` says where,
`fix` says what to do about it. A fault also knows the exit code of a command that ends with it.
"""

from __future__ import annotations

from typing import ClassVar


class Fault(Exception):
    """Retriage could not do this"""

    exit_code: ClassVar[int] = 1

    def __init__(self, detail: str = "", *, where: str = "", fix: str = "") -> None:
        super().__init__(detail, where, fix)
        self.detail = detail
        self.where = where
        self.fix = fix

    @property
    def sentence(self) -> str:
        return (type(self).__doc__ or "").strip().splitlines()[0]

    def __str__(self) -> str:
        text = f"{self.sentence}: {self.detail}" if self.detail else self.sentence
        if self.where:
            text = f"{self.where}: {text}"
        return f"{text}. {self.fix}" if self.fix else text


class UsageFault(Fault):
    """This call cannot be understood"""

    exit_code = 2


class ConfigFault(Fault):
    """The configuration is not usable"""

    exit_code = 2


class QueryFault(Fault):
    """The filter cannot be understood"""

    exit_code = 2

    def __init__(self, detail: str, *, column: int = 1, fix: str = "") -> None:
        super().__init__(detail, where=f"column {column}", fix=fix)
        self.column = column


class KeyFault(Fault):
    """That is not an item key"""

    exit_code = 2


class PluginFault(Fault):
    """The plugin cannot be used"""

    exit_code = 2


class BackendFault(Fault):
    """The backend did not answer"""


class Unreachable(BackendFault):
    """The backend cannot be reached"""


class WrongSchema(BackendFault):
    """The backend's tables are not what this plugin expects"""


class BackendBusy(BackendFault):
    """The backend is locked by someone else"""


class DeadlineExceeded(BackendFault):
    """The backend did not answer in time"""


class Interrupted(Fault):
    """Stopped before the end"""


class NoSuchItem(Fault):
    """There is no such item"""


class Refused(Fault):
    """Refused"""

    exit_code = 3


class ReadOnlyRefused(Refused):
    """Refused: this console is read-only"""


class NotConfirmed(Refused):
    """Refused: not confirmed"""


class PlanExpired(Refused):
    """Refused: the plan has expired"""


class PlanStale(Refused):
    """Refused: the plan cannot be applied any more"""


class AllBlocked(Refused):
    """Refused: nothing in this plan can be changed"""


class TooMany(Refused):
    """Refused: the selection is larger than allowed"""


class NotNarrowed(Refused):
    """Refused: nothing narrows this selection"""


class OverrideRunning(Refused):
    """Refused: another override is running on this backend"""


class TrailUnavailable(Refused):
    """Refused: the trail cannot be written, so nothing will be changed"""


class TrailBroken(Fault):
    """The trail is broken"""

    exit_code = 5


class PlanAltered(Fault):
    """The plan is not the one that was stored"""

    exit_code = 5


class NoSuchPlan(Fault):
    """There is no such plan"""

    exit_code = 2


class NoSuchOverride(Fault):
    """There is no such override"""

    exit_code = 2


class LeaseLost(Fault):
    """Another process has taken this override over"""
