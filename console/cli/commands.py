"""Every command: its name, options and help, and the function that runs it.

`run` names `module.function`, imported only for the command that was given. The function takes the parsed arguments and
the `CommandContext`, and returns the exit code.

A plugin brings a command family with an entry point in the group `retriage.commands`: the name is the family, the
value a function that takes an `Adder` and declares it. The module of that function should import nothing but this one,
because `--help` loads it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from console.cli.parser import Parser

GROUP = "retriage.commands"
OWN_FAMILIES = {"state": "plugins.partition_store.commands:declare"}
"""The families of our own plugins. No other distribution can replace them."""
"""The entry points of command families that plugins bring."""
FORMATS = ("table", "json", "jsonl", "csv")
DEFAULT_LIMIT = 100

_WHERE = """\
the query language; an item must match every term:
  backend:queue  condition:terminal,stuck  type:ANALYZE*  status:FAILED  key:queue/42
  error~"rate limit"  cause:7f3a  attempts>=3  recoverable:no  updated<2h  next<15m
  created>2026-11-01  -error~timeout (not)  word (in error, id and references)
without a condition: term, only items that need attention match: retrying, failed, terminal, stuck, unknown;
condition:* matches all"""


_SWITCHES = """\
Plugins add switches of their own. Where one would help, the plan names it with the items it skips."""


CONFIRMING = """\
On a terminal it asks before changing anything. Otherwise --confirm must be the number of items that would change.
SIGTERM, SIGINT and SIGHUP stop it after the items it is writing; `retriage overrides resume` continues it."""


def declare(commands: Any, shared: Parser, words: Collection[str] | None = None) -> None:
    """Declare every command in the order of the help, or only the families with a command among these words."""
    families: dict[Callable[[Adder], None], tuple[str, ...]] = {
        _console: ("demo", "tour"),
        _items: ("list", "causes", "upcoming", "show"),
        _writes: ("plan", "apply", "requeue"),
        _records: ("overrides", "trail"),
        _backends: ("check", "plugins", "map", "run"),
        _tools: ("completion",),
    }
    add = Adder(commands, shared)
    wanted = [family for family, names in families.items() if words is None or not set(names).isdisjoint(words)]
    for family in wanted:
        family(add)
    if words is None or not wanted:
        taken = {name for names in families.values() for name in names}
        for family in _plugin_families(words, taken):
            family(add)


def _plugin_families(words: Collection[str] | None, taken: Collection[str]) -> Iterator[Callable[[Adder], None]]:
    """The command families of plugins, or only those among these words. None replaces a command of ours."""
    from importlib.metadata import EntryPoint, entry_points

    own = [EntryPoint(name, value, GROUP) for name, value in OWN_FAMILIES.items()]
    foreign = [point for point in entry_points(group=GROUP) if point.name not in {*taken, *OWN_FAMILIES}]
    for point in (*own, *foreign):
        if words is None or point.name in words:
            with suppress(Exception):  # a broken plugin must not break the commands of the others
                yield point.load()


_PACKAGE = "console.cli"


class Adder:
    """Adds commands with their summary, their examples and the function that runs them."""

    def __init__(self, commands: Any, shared: Parser, package: str = _PACKAGE, *, needs_trail: bool = False) -> None:
        self._commands = commands
        self._shared = shared
        self._package = package
        self._needs_trail = needs_trail

    def family(self, name: str, summary: str, package: str = _PACKAGE) -> Adder:
        """A command with subcommands, which all use the trail. `package` is where their functions are."""
        description = summary[0].upper() + summary[1:] + "."
        parser: Parser = self._commands.add_parser(name, help=summary, description=description, parents=[self._shared])
        commands = parser.add_subparsers(metavar="COMMAND", dest="subcommand", required=True, parser_class=type(parser))
        return Adder(commands, self._shared, package, needs_trail=True)

    def __call__(self, name: str, summary: str, run: str, examples: str, more: str = "") -> Parser:
        epilog = "examples:\n" + "\n".join(f"  retriage {line}" for line in examples.splitlines())
        parser: Parser = self._commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".",
            epilog=f"{epilog}\n\n{more}" if more else epilog, parents=[self._shared],
        )
        parser.set_defaults(
            run=f"{self._package}.{run}", parser=parser, graceful=False, needs_trail=self._needs_trail
        )
        return parser


def _console(add: Adder) -> None:
    demo = add("demo", "open the console on a demo with sample systems and their workers", "demo.demo",
               "demo\ndemo --scale 100000 --dir ~/retriage-demo\ndemo --reset --no-open")
    _demo_folder(demo)
    demo.add_argument("--scale", metavar="N", type=_count, help="roughly how many items to build")
    demo.add_argument("--seed", metavar="N", type=whole_number, help="the same seed builds the same items")
    demo.add_argument("--speed", metavar="N", type=_count,
                      help="how many times faster than in reality the systems retry; default: 12")
    demo.add_argument("--reset", action="store_true", help="rebuild it")
    demo.add_argument("--no-open", action="store_true", help="print the config's path instead of opening the console")
    demo.add_argument("--postgres", action="store_true",
                      help="use a real PostgreSQL for the systems that can, until the console is closed")
    _demo_folder(add("tour", "open the demo with a guided tour of the first five minutes", "demo.tour", "tour"))


def _demo_folder(parser: Parser) -> None:
    parser.add_argument("--dir", metavar="FOLDER", help="the demo's folder; default: demo in the XDG state folder")
    parser.set_defaults(needs_trail=True)


def _items(add: Adder) -> None:
    listing = add("list", "list the items that need attention, or those that match --where", "items.list_items",
                  "list\nlist --where 'condition:terminal updated<2h' --sort attempts\n"
                  "list --backend jobs --where 'error~\"rate limit\"' --format csv --limit 0", _WHERE)
    _selection(listing)
    add_limit(listing)
    listing.add_argument(
        "--sort", metavar="COLUMN", default="",
        help="updated, created, next, attempts, type or id, with :asc or :desc; default: each backend's own order",
    )
    causes = add("causes", "count failures by cause, across backends", "causes.list_causes",
                 "causes\ncauses --where 'updated<1h' --sort recent\ncauses --format json", _WHERE)
    _selection(causes)
    add_limit(causes)
    causes.add_argument(
        "--sort", metavar="COLUMN", choices=("count", "recent", "last_seen", "first_seen"), default="count",
        help="count, recent (in the last hour), last_seen or first_seen; default: count",
    )
    upcoming = add("upcoming", "show when the next retries are due, per backend", "upcoming.show_upcoming",
                   "upcoming\nupcoming --until 1d --buckets 24\nupcoming --backend jobs --format csv", _WHERE)
    _selection(upcoming)
    upcoming.add_argument("--until", metavar="DURATION", default="1h", help="how far ahead to look; default: 1h")
    upcoming.add_argument("--buckets", metavar="N", type=_count, default=12, help="how many time steps; default: 12")
    show = add("show", "show one item: verdict, next retry, attempts, full error, native row", "items.show_item",
               "show analysis-queue/1f0c\nshow jobs/42 --format json")
    show.add_argument("key", metavar="KEY", help="backend/id, as `list` prints it")
    add_format(show)
    show.set_defaults(needs_trail=True)


def _writes(add: Adder) -> None:
    plan = add("plan", "show what a requeue would do and store it as a plan; changes no backend", "plans.plan",
               "plan --where 'condition:terminal error~\"rate limit\"' --attempts reset --pace 'over 30m'\n"
               "plan --key jobs/42 --key jobs/43\nplan --cause 7f3a --limit 100 --pace 'canary 20'",
               f"{_SWITCHES}\n\n{_WHERE}")
    _plan_options(plan)
    plan.add_argument("--items", action="store_true", help="also list every item (table format)")
    add_format(plan, ("table", "json", "jsonl"))
    apply = add("apply", "carry out a stored plan, exactly as previewed", "plans.apply",
                "apply p1f0c --reason 'provider is back' --ticket OPS-12\n"
                "apply p1f0c --reason 'provider is back' --confirm 120", CONFIRMING)
    apply.add_argument("plan", metavar="PLAN", help="the id that `plan` printed, or its unique beginning")
    add_confirmation(apply)
    requeue = add("requeue", "plan a requeue and carry it out", "plans.requeue",
                  "requeue --key jobs/42 --reason 'fixed by hand'\n"
                  "requeue --where 'cause:7f3a' --attempts reset --reason 'provider is back' --confirm 120",
                  f"{_SWITCHES}\n\n{_WHERE}\n\n{CONFIRMING}")
    _plan_options(requeue)
    add_confirmation(requeue)
    for parser in (plan, apply, requeue):
        parser.set_defaults(graceful=True, needs_trail=True)


def _records(add: Adder) -> None:
    overrides = add.family("overrides", "list overrides, and pause, stop, resume or undo one")
    listing = overrides("list", "list all overrides, newest first", "overrides.list_overrides", "overrides list")
    add_limit(listing)
    add_format(listing)
    show = overrides("show", "show one override: what it wrote, and what became of the items",
                     "overrides.show_override", "overrides show o1f0c --items")
    show.add_argument("--items", action="store_true", help="also what was written and what became of every item")
    add_format(show)
    undo = overrides("undo", "undo an override, for the items that nobody has changed since", "overrides.undo",
                     "overrides undo o1f0c --reason 'wrong filter'", CONFIRMING)
    add_confirmation(undo)
    resume = overrides("resume", "continue a paused, stopped or interrupted override", "overrides.resume",
                       "overrides resume o1f0c")
    pause = overrides("pause", "pause a running override after the items it is writing", "overrides.pause",
                      "overrides pause o1f0c")
    stop = overrides("stop", "stop a running override after the items it is writing", "overrides.stop",
                     "overrides stop o1f0c")
    for parser in (show, undo, resume, pause, stop):
        parser.add_argument("override", metavar="OVERRIDE", help="the override's id, or its unique beginning")
    for parser in (undo, resume):
        parser.set_defaults(graceful=True)
    _trail(add.family("trail", "read, verify and export the audit log of overrides and refusals"))


def _trail(add: Adder) -> None:
    listing = add("list", "list records, newest first", "trail.list_records", "trail list --limit 20")
    add_limit(listing)
    add_format(listing)
    show = add("show", "show one record in full", "trail.show_record", "trail show 12")
    show.add_argument("seq", metavar="SEQ", type=_count, help="the record's number")
    verify = add("verify", "check that no record was altered; exits with 5 and names the first bad one",
                 "trail.verify", "trail verify\ntrail verify --anchor /mnt/safe/anchors")
    verify.add_argument("--anchor", metavar="FILE", help="the anchors to check against; default: the configured file")
    export = add("export", "export every record as jsonl or csv", "trail.export",
                 "trail export > trail.jsonl\ntrail export --format csv --items --output trail.csv")
    export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
    export.add_argument("--items", action="store_true", help="also what was written and what became of every item")
    export.add_argument("--output", metavar="FILE", help="write to a new file instead of stdout")
    unresolved = add("unresolved", "list writes whose outcome is not recorded yet", "trail.unresolved",
                     "trail unresolved")
    add_format(unresolved)


def _backends(add: Adder) -> None:
    check = add("check", "examine the config, the trail, every backend and its policy, and say what to fix",
                "check.check", "check\ncheck --backend jobs\ncheck --format json")
    _backend(check)
    add_format(check)
    check.set_defaults(needs_trail=True)
    plugins = add("plugins", "list installed plugins, their versions and what they can do", "backends.list_plugins",
                  "plugins\nplugins --format json")
    add_format(plugins)
    mapping = add("map", "look at a database and propose how to attach it", "map.propose",
                  "map postgresql://oncall@db/app\nmap jobs\n"
                  "map /srv/jobs.db --table jobs --output jobs.yaml",
                  "It recognises the presets of sql_table. Otherwise it proposes a mapping and gives reasons.\n"
                  "Passwords come from PGPASSFILE or a configured backend, never from the command line.")
    mapping.add_argument("place", metavar="URL|FILE|BACKEND",
                         help="a database's URL, an SQLite file, or the name of a configured backend")
    mapping.add_argument("--table", metavar="NAME", help="the table to map; default: the one most like a queue")
    mapping.add_argument("--output", metavar="FILE", help="write the YAML to a new file instead of stdout")
    add_format(mapping, of="of the first items, which are listed when --output is given; ")
    run = add("run", "run a backend's own engine with the handler named in the config", "backends.run_engine",
              "run jobs", "SIGTERM, SIGINT and SIGHUP stop it after the current task.")
    run.add_argument("backend", metavar="BACKEND", help="a configured backend whose plugin has an engine")
    run.set_defaults(graceful=True)


def _tools(add: Adder) -> None:
    completion = add("completion", "print a completion script for a shell", "completion.print_script",
                     "completion bash > ~/.local/share/bash-completion/completions/retriage\n"
                     "completion zsh > ~/.zfunc/_retriage")
    completion.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "tcsh"), help="bash, zsh or tcsh")


# --- options several commands share -----------------------------------------------------------------


def _plan_options(parser: Parser, action: str = "requeue") -> None:
    """Which items are selected, and how the action is done to them."""
    _backend(parser)
    parser.add_argument("--where", metavar="FILTER", default="", help="the items to select; see below")
    parser.add_argument("--key", metavar="KEY", action="append", help="select this item; may be repeated")
    parser.add_argument("--cause", metavar="CAUSE", help="select the items with this cause, as `causes` prints it")
    parser.add_argument("--all", action="store_true", help="select everything that needs attention")
    parser.add_argument("--limit", metavar="N", type=whole_number, default=0, help="only the first N in sort order")
    parser.add_argument("--sort", metavar="COLUMN", default="", help="as in `list`")
    add_attempts(parser)
    add_pace(parser)
    parser.add_argument("--include-unrecoverable", action="store_true",
                        help="also items whose error is configured as unrecoverable")
    parser.add_argument("--respect-backoff", action="store_true",
                        help="run no item before its policy's backoff is over, where the backend can do that")
    # Plugins offer switches of their own. They are known only when the backends are open, and are checked then.
    parser.set_defaults(takes_switches=True, action=action)


def add_attempts(parser: Parser, note: str = "") -> None:
    parser.add_argument("--attempts", choices=("keep", "reset"), default="keep",
                        help=note or "keep the attempt counter (usually one more try) or reset it; default: keep")


def add_pace(parser: Parser) -> None:
    parser.add_argument("--pace", metavar="PACE", default="now",
                        help="now, 'over 30m', 10/s or 'canary 20'; default: now")


def add_confirmation(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; it is recorded in the trail")
    parser.add_argument("--ticket", metavar="ID", help="a ticket to record with it")
    parser.add_argument("--confirm", metavar="N", type=whole_number, help="the number of items that would change")


def _selection(parser: Parser) -> None:
    _backend(parser)
    parser.add_argument("--where", metavar="FILTER", default="", help="only items that match; see below")
    add_format(parser)


def _backend(parser: Parser) -> None:
    parser.add_argument("--backend", metavar="NAME", action="append", help="only this backend; may be repeated")


def add_format(parser: Parser, formats: tuple[str, ...] = FORMATS, *, of: str = "") -> None:
    parser.add_argument("--format", choices=formats, help=f"{of}default: table on a terminal, otherwise jsonl")


def add_limit(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=whole_number, default=DEFAULT_LIMIT,
                        help=f"at most N; 0 for all; default: {DEFAULT_LIMIT}")


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number such as 100")
    return int(text)


def _count(text: str) -> int:
    if not (found := whole_number(text)):
        raise argparse.ArgumentTypeError("must be at least 1")
    return found
