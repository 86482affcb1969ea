"""The catalogue of commands: what each is called, takes and shows as help, and where it is carried out.

`run` names `module.function` in `console.cli`, imported only for the command that was asked for. The
function takes the parsed arguments and the `Doors` that `__main__` opens, and returns the exit code.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from console.cli.parser import Parser

FORMATS = ("table", "json", "jsonl", "csv")
DEFAULT_LIMIT = 100

_WHERE = """\
the query language, terms ANDed:
  backend:queue  condition:terminal,stuck  type:ANALYZE*  status:FAILED  key:queue/42
  error~"rate limit"  signature:7f3a  attempts>=3  recoverable:no  updated<2h  next<15m
  created>2026-11-01  -error~timeout (not)  word (in error, id and references)
without a condition: term, what needs eyes is shown: retrying, failed, terminal, stuck, unknown;
condition:* shows all"""


CONFIRMING = """\
on a terminal it asks; elsewhere --confirm must name the number of items that would change.
SIGTERM, SIGINT and SIGHUP end it after the chunk it is writing; `overrides resume` goes on."""


def declare(commands: Any, shared: Parser, words: Collection[str] | None = None) -> None:
    """Every command, in the order of the help; or only the families of those that are among these words."""
    families: dict[Callable[[Adder], None], tuple[str, ...]] = {
        _console: ("demo", "tour"),
        _items: ("list", "groups", "upcoming", "show"),
        _writes: ("plan", "apply", "requeue"),
        _partitions: ("state",),
        _records: ("overrides", "trail"),
        _backends: ("check", "plugins", "map", "run"),
        _tools: ("completion",),
    }
    add = Adder(commands, shared)
    for family, names in families.items():
        if words is None or not set(names).isdisjoint(words):
            family(add)


class Adder:
    """Adds commands with their summary, examples and where they are carried out."""

    def __init__(self, commands: Any, shared: Parser, *, keeps_book: bool = False) -> None:
        self._commands = commands
        self._shared = shared
        self._keeps_book = keeps_book

    def family(self, name: str, summary: str) -> Adder:
        """A command with commands of its own, all about the trail."""
        description = summary[0].upper() + summary[1:] + "."
        parser: Parser = self._commands.add_parser(name, help=summary, description=description, parents=[self._shared])
        commands = parser.add_subparsers(metavar="COMMAND", dest="subcommand", required=True, parser_class=type(parser))
        return Adder(commands, self._shared, keeps_book=True)

    def __call__(self, name: str, summary: str, run: str, examples: str, more: str = "") -> Parser:
        epilog = "examples:\n" + "\n".join(f"  retriage {line}" for line in examples.splitlines())
        parser: Parser = self._commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".",
            epilog=f"{epilog}\n\n{more}" if more else epilog, parents=[self._shared],
        )
        parser.set_defaults(run=run, graceful=False, keeps_book=self._keeps_book)
        return parser


def _console(add: Adder) -> None:
    demo = add("demo", "build or reuse a sandbox world and open the console on it", "world.demo",
               "demo\ndemo --scale 100000 --dir /tmp/world\ndemo --reset --no-open")
    _world(demo)
    demo.add_argument("--scale", metavar="N", type=_count, help="about how many items, when it is built")
    demo.add_argument("--seed", metavar="N", type=whole_number, help="another world, the same for the same number")
    demo.add_argument("--speed", metavar="N", type=_count, help="how much faster than life it retries; default: 12")
    demo.add_argument("--reset", action="store_true", help="build it again, as of now")
    demo.add_argument("--no-open", action="store_true", help="print the config's path instead of opening it")
    demo.add_argument("--postgres", action="store_true",
                      help="a real PostgreSQL for the backends that can use one, until the console is left")
    _world(add("tour", "the console on the sandbox world, with a guide through the first five minutes", "world.tour",
               "tour"))


def _world(parser: Parser) -> None:
    parser.add_argument("--dir", metavar="FOLDER", help="where the world is; default: the XDG state folder")
    parser.set_defaults(keeps_book=True)


def _items(add: Adder) -> None:
    listing = add("list", "items that need eyes, or whatever --where asks for", "items.list_items",
                  "list\nlist --where 'condition:terminal updated<2h' --sort attempts\n"
                  "list --backend jobs --where 'error~\"rate limit\"' --format csv --limit 0", _WHERE)
    _selection(listing)
    add_limit(listing)
    listing.add_argument(
        "--sort", metavar="COLUMN", default="",
        help="updated, created, next, attempts, type or id, with :asc or :desc; default: each backend's order",
    )
    groups = add("groups", "failures by cause across backends", "groups.list_groups",
                 "groups\ngroups --where 'updated<1h' --sort recent\ngroups --format json", _WHERE)
    _selection(groups)
    add_limit(groups)
    groups.add_argument("--sort", choices=("count", "recent", "last", "first"), default="count",
                        help="most, most in the last hour, latest, or newest cause; default: count")
    upcoming = add("upcoming", "the retries that are coming, per backend and time", "upcoming.show_upcoming",
                   "upcoming\nupcoming --until 1d --buckets 24\nupcoming --backend jobs --format csv", _WHERE)
    _selection(upcoming)
    upcoming.add_argument("--until", metavar="DURATION", default="1h", help="how far ahead; default: 1h")
    upcoming.add_argument("--buckets", metavar="N", type=_count, default=12, help="in how many steps; default: 12")
    show = add("show", "one item: verdict, schedule, attempts, full error, native row", "items.show_item",
               "show analysis-queue/1f0c\nshow jobs/42 --format json")
    show.add_argument("key", metavar="KEY", help="backend/id, as `list` prints it")
    add_format(show)
    show.set_defaults(keeps_book=True)


def _writes(add: Adder) -> None:
    plan = add("plan", "freeze what a requeue would do, and show it; writes nothing to a backend", "plans.plan",
               "plan --where 'condition:terminal error~\"rate limit\"' --budget fresh --release 'over 30m'\n"
               "plan --key jobs/42 --key jobs/43\nplan --group 7f3a --limit 100 --release 'canary 20'", _WHERE)
    _order(plan)
    plan.add_argument("--items", action="store_true", help="list every item too (table format)")
    add_format(plan, ("table", "json", "jsonl"))
    apply = add("apply", "carry out a stored plan, exactly as previewed", "plans.apply",
                "apply p1f0c --reason 'provider is back' --ticket OPS-12\n"
                "apply p1f0c --reason 'provider is back' --confirm 120", CONFIRMING)
    apply.add_argument("plan", metavar="PLAN", help="the id `plan` printed; a unique beginning is enough")
    add_confirmation(apply)
    requeue = add("requeue", "plan and apply in one", "plans.requeue",
                  "requeue --key jobs/42 --reason 'fixed by hand'\n"
                  "requeue --where 'signature:7f3a' --budget fresh --reason 'provider is back' --confirm 120",
                  f"{_WHERE}\n\n{CONFIRMING}")
    _order(requeue)
    add_confirmation(requeue)
    for parser in (plan, apply, requeue):
        parser.set_defaults(graceful=True, keeps_book=True)


def _partitions(add: Adder) -> None:
    from console.cli.state_commands import declare_state  # it takes its options from here

    declare_state(add.family("state", "a partition store: inspect, retry, backfill, pause, what is terminal"))


def _records(add: Adder) -> None:
    overrides = add.family("overrides", "what was confirmed, how far it got, and what can be done about it")
    listing = overrides("list", "every override, newest first", "overrides.list_overrides", "overrides list")
    add_limit(listing)
    add_format(listing)
    show = overrides("show", "one override, with --items every outcome", "overrides.show_override",
                     "overrides show o1f0c --items")
    show.add_argument("--items", action="store_true", help="the outcome of every item")
    add_format(show)
    undo = overrides("undo", "take an override back, for items still as it left them", "overrides.undo",
                     "overrides undo o1f0c --reason 'wrong filter'", CONFIRMING)
    add_confirmation(undo)
    resume = overrides("resume", "go on with a paused, stopped or interrupted one", "overrides.resume",
                       "overrides resume o1f0c")
    pause = overrides("pause", "let a running one wait after its chunk", "overrides.pause", "overrides pause o1f0c")
    stop = overrides("stop", "end a running one after its chunk", "overrides.stop", "overrides stop o1f0c")
    for parser in (show, undo, resume, pause, stop):
        parser.add_argument("override", metavar="OVERRIDE", help="its id; a unique beginning is enough")
    for parser in (undo, resume):
        parser.set_defaults(graceful=True)
    _trail(add.family("trail", "the record of every override and refusal, and whether it is intact"))


def _trail(add: Adder) -> None:
    listing = add("list", "records, newest first", "trail.list_records", "trail list --limit 20")
    add_limit(listing)
    add_format(listing)
    show = add("show", "one record, whole", "trail.show_record", "trail show 12")
    show.add_argument("seq", metavar="SEQ", type=_count, help="its number")
    verify = add("verify", "whether every record is as it was written; exit 5 names the first bad one",
                 "trail.verify", "trail verify\ntrail verify --anchor /mnt/safe/anchors")
    verify.add_argument("--anchor", metavar="FILE", help="anchors to hold it against; default: the configured file")
    export = add("export", "every record as jsonl or csv", "trail.export",
                 "trail export > trail.jsonl\ntrail export --format csv --items --output trail.csv")
    export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
    export.add_argument("--items", action="store_true", help="the outcome of every item too")
    export.add_argument("--output", metavar="FILE", help="a new file instead of stdout")
    unresolved = add("unresolved", "intents whose outcome nobody recorded yet", "trail.unresolved", "trail unresolved")
    add_format(unresolved)


def _backends(add: Adder) -> None:
    check = add("check", "config, every backend, policies: what is wrong and what to do", "check.check",
                "check\ncheck --backend jobs\ncheck --format json")
    _backend(check)
    add_format(check)
    check.set_defaults(keeps_book=True)
    plugins = add("plugins", "installed backends, versions, capabilities", "backends.list_plugins",
                  "plugins\nplugins --format json")
    add_format(plugins)
    mapping = add("map", "look at a database and propose how to attach it", "map.propose",
                  "map postgresql://oncall@db/app\nmap jobs\n"
                  "map sqlite:////srv/jobs.db --table jobs --output jobs.yaml",
                  "it recognises the presets of sql_table, and otherwise guesses a mapping, each with its reason.\n"
                  "a password comes from PGPASSFILE or a configured backend, never from the command line.")
    mapping.add_argument("place", metavar="URL|BACKEND", help="a database, or a configured backend whose url is taken")
    mapping.add_argument("--table", metavar="NAME", help="the table to map; default: what looks most like a queue")
    mapping.add_argument("--output", metavar="FILE", help="a new file for the YAML; default: stdout")
    add_format(mapping, of="of the first items, which are listed beside --output; ")
    run = add("run", "a backend's own engine with the handler named in config", "backends.run_engine",
              "run jobs", "SIGTERM, SIGINT and SIGHUP end it after the current task.")
    run.add_argument("backend", metavar="BACKEND", help="a configured backend whose plugin has an engine")
    run.set_defaults(graceful=True)


def _tools(add: Adder) -> None:
    completion = add("completion", "print the completion script of a shell", "completion.print_script",
                     "completion bash > ~/.local/share/bash-completion/completions/retriage\n"
                     "completion zsh > ~/.zfunc/_retriage")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="which shell")


# --- options several commands share -----------------------------------------------------------------


def _order(parser: Parser) -> None:
    """What is selected, and what is to be done to it."""
    _backend(parser)
    parser.add_argument("--where", metavar="FILTER", default="", help="what to look for; see below")
    parser.add_argument("--key", metavar="KEY", action="append", help="exactly this item; may be repeated")
    parser.add_argument("--group", metavar="SIGNATURE", help="one cause, as `groups` prints it")
    parser.add_argument("--all", action="store_true", help="when nothing narrows the selection and that is meant")
    parser.add_argument("--limit", metavar="N", type=whole_number, default=0, help="only the first N in sort order")
    parser.add_argument("--sort", metavar="COLUMN", default="", help="as in `list`")
    parser.add_argument("--budget", choices=("keep", "fresh"), default="keep",
                        help="keep the attempt counter (normally one more try), or start afresh; default: keep")
    parser.add_argument("--release", metavar="WHEN", default="now",
                        help="now, 'over 30m', 10/s or 'canary 20'; default: now")
    parser.add_argument("--clear-terminal", action="store_true", help="also what was marked terminal")
    parser.add_argument("--allow-unrecoverable", action="store_true", help="also what cannot recover by its error")
    parser.add_argument("--wake-task", action="store_true", help="workflow steps: wake their task too")


def add_confirmation(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; it goes on record")
    parser.add_argument("--ticket", metavar="ID", help="where it is discussed")
    parser.add_argument("--confirm", metavar="N", type=whole_number, help="how many items you mean to change")


def _selection(parser: Parser) -> None:
    _backend(parser)
    parser.add_argument("--where", metavar="FILTER", default="", help="what to look for; see below")
    add_format(parser)


def _backend(parser: Parser) -> None:
    parser.add_argument("--backend", metavar="NAME", action="append", help="only this backend; may be repeated")


def add_format(parser: Parser, formats: tuple[str, ...] = FORMATS, *, of: str = "") -> None:
    parser.add_argument("--format", choices=formats, help=f"{of}default: table to a terminal, otherwise jsonl")


def add_limit(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=whole_number, default=DEFAULT_LIMIT,
                        help=f"at most so many; 0: all; default: {DEFAULT_LIMIT}")


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as 100")
    return int(text)


def _count(text: str) -> int:
    if not (found := whole_number(text)):
        raise argparse.ArgumentTypeError("must be at least 1")
    return found
