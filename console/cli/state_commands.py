"""The `state` commands' part of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.cli.commands import CONFIRMING, add_confirmation, add_format, add_limit, whole_number

if TYPE_CHECKING:
    from console.cli.commands import Adder
    from console.cli.parser import Parser

_WHICH = """\
which partitions:
  --source S --customer-id C --query-name Q   a series, or a part of one; what is left out is any
  --logical-date 2026-11-09                   one day; may be repeated
  --since 2026-11-01 --until 2026-11-09       days, both included
  --where 'error~timeout attempts>=3'         the query language of `retriage list`
  --key partitions/S/C/Q/2026-11-09           exactly this one; may be repeated"""


def declare_state(state: Adder) -> None:
    _looking(state)
    retry = _writing(
        state, "retry", "hand failed partitions back to their validator",
        "state retry --customer-id c1 --logical-date 2026-11-09 --reason 'source is fixed'\n"
        "state retry --query-name spend --since 2026-11-01 --reason 'source is fixed' --confirm 24",
    )
    retry.add_argument("--clear-terminal", action="store_true", help="also what is terminal")
    retry.add_argument("--back-off", action="store_true", help="not before the policy's backoff is over")
    retry.add_argument("--budget", choices=("keep", "fresh"), default="keep",
                       help="attempt_count never goes back, so fresh is refused; default: keep")
    reprocess = _writing(state, "reprocess", "validate the newest run of a success again; consumers keep reading",
                         "state reprocess --key partitions/ads/c1/spend/2026-11-09 --reason 'late data'")
    fill = _writing(
        state, "backfill", "enqueue a range of days as pending; existing rows keep their status",
        "state backfill --source ads --customer-id c1 --query-name spend --since 2026-01-01 --until 2026-01-31"
        " --reason 'new customer'\nstate backfill --since 2026-11-01 --release 5/m --reason 'gaps of the range'",
    )
    for parser in (retry, reprocess, fill):
        _release(parser)
    _writing(state, "mark-terminal", "say that failed partitions are not to be retried any more",
             "state mark-terminal --customer-id c1 --until 2026-10-31 --reason 'customer left'")
    _writing(state, "clear-terminal", "take such a mark back, or overrule one in the error text",
             "state clear-terminal --customer-id c1 --reason 'customer is back'")
    _writing(state, "pause", "keep partitions from being validated until they are unpaused",
             "state pause --source ads --reason 'source is down'")
    _writing(state, "unpause", "let paused partitions be validated again",
             "state unpause --source ads --reason 'source is back'")


def _looking(state: Adder) -> None:
    inspect = state("inspect", "status, attempts and verdict of partitions; one alone with all there is",
                    "state.inspect", "state inspect --customer-id c1 --since 2026-11-01\n"
                    "state inspect --source ads --customer-id c1 --query-name spend --logical-date 2026-11-09", _WHICH)
    terminal = state("terminal", "partitions nobody retries any more, and why", "state.terminal",
                     "state terminal\nstate terminal --source ads --format csv", _WHICH)
    history = state("history", "what happened to one partition and what comes next", "state.history",
                    "state history --key partitions/ads/c1/spend/2026-11-09", _WHICH)
    for parser in (inspect, terminal, history):
        _which(parser)
        add_format(parser)
    for parser in (inspect, terminal):
        add_limit(parser)


def _writing(state: Adder, name: str, summary: str, examples: str) -> Parser:
    run = f"state.{name.replace('-', '_')}"
    parser = state(name, summary, run, examples, f"{_WHICH}\n\n{CONFIRMING}")
    _which(parser)
    parser.add_argument("--all", action="store_true", help="when nothing narrows the selection and that is meant")
    parser.add_argument("--limit", metavar="N", type=whole_number, default=0, help="only the first N, newest first")
    add_confirmation(parser)
    parser.set_defaults(graceful=True, release="now")
    return parser


def _release(parser: Parser) -> None:
    parser.add_argument("--release", metavar="WHEN", default="now",
                        help="now, 'over 30m', 10/s or 'canary 20'; default: now")


def _which(parser: Parser) -> None:
    parser.add_argument("--backend", metavar="NAME", help="which partition store, where there are several")
    parser.add_argument("--source", metavar="S", help="only this source")
    parser.add_argument("--customer-id", metavar="C", help="only this customer")
    parser.add_argument("--query-name", metavar="Q", help="only this query")
    parser.add_argument("--logical-date", metavar="DATE", action="append", help="only this day; may be repeated")
    parser.add_argument("--since", metavar="DATE", help="this day and later ones")
    parser.add_argument("--until", metavar="DATE", help="this day and earlier ones")
    parser.add_argument("--where", metavar="FILTER", default="", help="the query language, as in `list`")
    parser.add_argument("--key", metavar="KEY", action="append", help="exactly this partition; may be repeated")
