"""The `state` commands: their options and help.

Named by the entry point `state` in the group `retriage.commands`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.cli.adder import (
    CONFIRMING,
    add_attempts,
    add_confirmation,
    add_format,
    add_limit,
    add_pace,
    whole_number,
)

if TYPE_CHECKING:
    from console.cli.adder import Adder
    from console.cli.parser import Parser

_STATE = "plugins.partition_store.commands.state"
_WHICH = """\
which partitions:
  --source S --customer-id C --query-name Q   a series; leave out an option to match any
  --logical-date 2026-11-09                   one day; may be repeated
  --since 2026-11-01 --until 2026-11-09       a range of days, both included
  --where 'error~timeout attempts>=3'         the query language of `retriage list`
  --key partitions/S/C/Q/2026-11-09           exactly this partition; may be repeated"""


def declare(add: Adder) -> None:
    """Declare the command family."""
    state = add.family("state", "inspect, retry, backfill and pause the partitions of a partition store", _STATE)
    _reading_commands(state)
    retry = _writing_command(
        state, "retry", "requeue failed partitions, so that they are validated again",
        "state retry --customer-id c1 --logical-date 2026-11-09 --reason 'source is fixed'\n"
        "state retry --query-name spend --since 2026-11-01 --reason 'source is fixed' --confirm 24",
    )
    retry.add_argument("--include-terminal-partitions", action="store_true", help="also terminal partitions")
    retry.add_argument("--force-pending", action="store_true", help="also partitions without a run in the raw sink")
    retry.add_argument("--respect-backoff", action="store_true", help="not before the policy's backoff is over")
    add_attempts(retry, "a partition store can only keep its counter: reset is refused; default: keep")
    reprocess = _writing_command(
        state, "reprocess", "validate the newest run of a successful partition again; consumers can keep reading",
        "state reprocess --key partitions/ads/c1/spend/2026-11-09 --reason 'late data'",
    )
    backfill = _writing_command(
        state, "backfill", "add a range of days as pending; existing partitions keep their status",
        "state backfill --source ads --customer-id c1 --query-name spend --since 2026-01-01 --until 2026-01-31"
        " --reason 'new customer'\nstate backfill --since 2026-11-01 --pace 5/m --reason 'fill the gaps'",
    )
    backfill.add_argument("--force-pending", action="store_true", help="also set existing partitions to pending")
    for parser in (retry, reprocess, backfill):
        add_pace(parser)
    _writing_command(state, "mark-terminal", "mark failed partitions as terminal, so that they are not retried",
                     "state mark-terminal --customer-id c1 --until 2026-10-31 --reason 'customer left'")
    _writing_command(state, "clear-terminal", "remove the terminal mark, or overrule one in the error text",
                     "state clear-terminal --customer-id c1 --reason 'customer is back'")
    _writing_command(state, "pause", "pause partitions: they are not validated until they are unpaused",
                     "state pause --source ads --reason 'source is down'")
    _writing_command(state, "unpause", "unpause partitions, so that they are validated again",
                     "state unpause --source ads --reason 'source is back'")


def _reading_commands(state: Adder) -> None:
    inspect = state("inspect", "list partitions with status, attempts and verdict; show a single one in full",
                    "inspect", "state inspect --customer-id c1 --since 2026-11-01\n"
                    "state inspect --source ads --customer-id c1 --query-name spend --logical-date 2026-11-09", _WHICH)
    terminal = state("terminal", "list terminal partitions, which are not retried, and why", "terminal",
                     "state terminal\nstate terminal --source ads --format csv", _WHICH)
    history = state("history", "show what happened to one partition and what comes next", "history",
                    "state history --key partitions/ads/c1/spend/2026-11-09", _WHICH)
    for parser in (inspect, terminal, history):
        _which(parser)
        add_format(parser)
    for parser in (inspect, terminal):
        add_limit(parser)


def _writing_command(state: Adder, name: str, summary: str, examples: str) -> Parser:
    parser = state(name, summary, name.replace("-", "_"), examples, f"{_WHICH}\n\n{CONFIRMING}")
    _which(parser)
    parser.add_argument("--all", action="store_true", help="select all partitions")
    parser.add_argument("--limit", metavar="N", type=whole_number, default=0, help="only the first N, newest first")
    add_confirmation(parser)
    parser.set_defaults(graceful=True, pace="now")
    return parser


def _which(parser: Parser) -> None:
    parser.add_argument("--backend", metavar="NAME", help="the partition store, where there are several")
    parser.add_argument("--source", metavar="S", help="only this source")
    parser.add_argument("--customer-id", metavar="C", help="only this customer")
    parser.add_argument("--query-name", metavar="Q", help="only this query")
    parser.add_argument("--logical-date", metavar="DATE", action="append", help="only this day; may be repeated")
    parser.add_argument("--since", metavar="DATE", help="this day and later ones")
    parser.add_argument("--until", metavar="DATE", help="this day and earlier ones")
    parser.add_argument("--where", metavar="FILTER", default="", help="the query language, as in `list`")
    parser.add_argument("--key", metavar="KEY", action="append", help="exactly this partition; may be repeated")
