"""Every command: its name, options and help, and the function that runs it.

`run` names `module.function`, imported only for the command that was given. The function takes the parsed arguments and
the `CommandContext`, and returns the exit code.

A plugin brings a command family with an entry point in the group `retriage.commands`: the name is the family, the
value a function that takes an `Adder` and declares it. The module of that function should import nothing but
`console.cli.adder`, because `--help` loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from console.cli.adder import (
    CONFIRMING,
    Adder,
    add_attempts,
    add_confirmation,
    add_detach,
    add_format,
    add_limit,
    add_pace,
    add_watch,
    positive_number,
    whole_number,
)

if TYPE_CHECKING:
    from console.cli.parser import Parser

GROUP = "retriage.commands"
"""The entry points of command families that plugins bring."""
OWN_FAMILIES = {"state": "plugins.partition_store.commands:declare"}
"""The families of our own plugins. No other distribution can replace them."""

_WHERE = """\
the query language; an item must match every term:
  backend:queue  condition:terminal,stuck  type:ANALYZE*  status:FAILED  key:queue/42
  error~"rate limit"  cause:7f3a  attempts>=3  recoverable:no  updated<2h  next<15m
  created>2026-11-01  -error~timeout (not)  word (in error, id and references)
without a condition: term, only items that need attention match: retrying, failed, terminal, stuck, unknown;
condition:* matches all"""


_SWITCHES = """\
Plugins add switches of their own. Where one would help, the plan names it with the items it skips."""


_DISCARDED = """\
Each system gives an item up by its own rule, and never runs it again. Retrying, failed and stuck items can be
discarded; terminal ones only where their system can close or delete them. Where it deletes them, this cannot be
undone, and the number has to be typed."""


WATCHING = """It ends when every item has a final result, or `console.watch_for` after the last due time. The items are
read as often as `console.load` allows. The result is recorded once, however many processes watch. The exit code is 0
if all items recovered, else 1."""


def declare(commands: Any, shared: Parser, words: Collection[str] | None = None) -> None:
    """Declare every command in the order of the help, or only the families with a command among these words."""
    families: dict[Callable[[Adder], None], tuple[str, ...]] = {
        _console: ("demo", "tour"),
        _items: ("list", "causes", "upcoming", "show"),
        _writes: ("plan", "apply", "requeue", "discard"),
        _records: ("overrides", "proposals", "runner", "mcp", "trail"),
        _history: ("history", "alerts", "metrics", "report"),
        _backends: ("check", "plugins", "map", "attach", "run"),
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
    from importlib.metadata import EntryPoint

    from console.core.entry_points import points_in

    own = [EntryPoint(name, value, GROUP) for name, value in OWN_FAMILIES.items()]
    foreign = [point for point in points_in(GROUP) if point.name not in {*taken, *OWN_FAMILIES}]
    for point in (*own, *foreign):
        if words is None or point.name in words:
            with suppress(Exception):  # a broken plugin must not break the commands of the others
                yield point.load()


def _console(add: Adder) -> None:
    demo = add("demo", "open the console on a demo with sample systems and their workers", "demo.demo",
               "demo\ndemo --scale 100000 --dir ~/retriage-demo\ndemo --reset --no-open")
    _demo_folder(demo)
    demo.add_argument("--scale", metavar="N", type=positive_number, help="roughly how many items to build")
    demo.add_argument("--seed", metavar="N", type=whole_number, help="the same seed builds the same items")
    demo.add_argument("--speed", metavar="N", type=positive_number,
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
        help="updated, created, next, attempts, type, id or backend, with :asc or :desc; default: the worst first",
    )
    add_watch(listing)
    causes = add("causes", "count failures by cause, across backends", "causes.list_causes",
                 "causes\ncauses --where 'updated<1h' --sort recent\ncauses --format json", _WHERE)
    _selection(causes)
    add_limit(causes)
    causes.add_argument(
        "--sort", metavar="COLUMN", choices=("count", "recent", "last_seen", "first_seen"), default="count",
        help="count, recent (in the last hour), last_seen or first_seen; default: count",
    )
    add_watch(causes)
    _at(causes, "the causes at this time, as recorded")
    causes.set_defaults(needs_trail=True)
    _cause_changes(add.within(causes))
    upcoming = add("upcoming", "show when the next retries are due, per backend", "upcoming.show_upcoming",
                   "upcoming\nupcoming --until 1d --buckets 24\nupcoming --backend jobs --format csv", _WHERE)
    _selection(upcoming)
    upcoming.add_argument("--until", metavar="DURATION", default="1h", help="how far ahead to look; default: 1h")
    upcoming.add_argument("--buckets", metavar="N", type=positive_number, default=12,
                          help="how many steps of time; default: 12")
    add_watch(upcoming)
    _at(upcoming, "what was due in the hour after this time, in steps of 5 minutes")
    upcoming.set_defaults(needs_trail=True)
    show = add("show", "show one item: verdict, next retry, attempts, full error, native row", "items.show_item",
               "show analysis-queue/1f0c\nshow jobs/42 --format json")
    show.add_argument("key", metavar="KEY", help="backend/id, as `list` prints it")
    add_format(show)
    add_watch(show)
    show.set_defaults(needs_trail=True)


def _at(parser: Parser, help: str) -> None:
    parser.add_argument("--at", metavar="TIME", help=f"{help}; a time, or how long ago, such as 2h")


def _cause_changes(add: Adder) -> None:
    """What somebody can record about a cause. It changes only the trail, never a watched system."""
    ack = add("ack", "acknowledge a cause: somebody knows about it, and it is listed last",
              "cause_changes.acknowledge", "causes ack 7f3a --note 'provider is down, see status page'")
    snooze = add("snooze", "list a cause last until a time, until it doubles, or until it reaches another system",
                 "cause_changes.snooze", "causes snooze 7f3a --until 4h\ncauses snooze 7f3a --until-doubles")
    snooze.add_argument("--until", metavar="TIME", help="a time, or how long from now, such as 4h")
    snooze.add_argument("--until-doubles", action="store_true", help="until it has twice as many failures as now")
    snooze.add_argument("--until-another-system", action="store_true", help="until it fails in another system too")
    resolve = add("resolve", "mark a cause as resolved; if it fails again, it is shown as regressed",
                  "cause_changes.resolve", "causes resolve 7f3a --note 'key was rotated'")
    reopen = add("reopen", "reopen a cause that was acknowledged, snoozed or resolved",
                 "cause_changes.reopen", "causes reopen 7f3a")
    assign = add("assign", "name the owner of a cause", "cause_changes.assign",
                 "causes assign 7f3a bo\ncauses assign 7f3a ''")
    text = add("note", "write a note about a cause", "cause_changes.add_note", "causes note 7f3a 'see OPS-12'")
    for parser in (ack, snooze, resolve, reopen, assign, text):
        parser.add_argument("cause", metavar="CAUSE", help="as `causes` prints it, or at least 4 digits of it")
    for parser in (ack, snooze, resolve, reopen):
        parser.add_argument("--note", metavar="TEXT", default="", help="a note to record with it")
    assign.add_argument("owner", metavar="OWNER", help="a name; an empty one for nobody")
    text.add_argument("text", metavar="TEXT", help="what others should know")


def _writes(add: Adder) -> None:
    plan = add("plan", "show what a requeue or discard would do and store it as a plan; changes no backend",
               "plans.plan",
               "plan --where 'condition:terminal error~\"rate limit\"' --attempts reset --pace 'over 30m'\n"
               "plan --key jobs/42 --key jobs/43\nplan --cause 7f3a --limit 100 --pace 'canary 20'\n"
               "plan --discard --cause 7f3a",
               f"{_SWITCHES}\n\n{_WHERE}")
    _plan_options(plan)
    _requeue_options(plan)
    plan.add_argument("--discard", dest="action", action="store_const", const="discard",
                      help="plan a discard instead of a requeue")
    _discard_options(plan)
    plan.add_argument("--items", action="store_true", help="also list every item (table format)")
    plan.add_argument("--submit", action="store_true",
                      help="also submit it as a proposal, for somebody else to approve; needs --reason")
    plan.add_argument("--reason", metavar="TEXT", default="", help="why, with --submit")
    plan.add_argument("--ticket", metavar="ID", help="a ticket to record with it, with --submit")
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
    _requeue_options(requeue)
    requeue.set_defaults(kind=None)
    add_confirmation(requeue)
    discard = add("discard", "plan a discard and carry it out: the items' own systems give them up", "plans.discard",
                  "discard --key jobs/42 --reason 'customer is gone'\n"
                  "discard --where 'cause:7f3a' --reason 'bad input, OPS-12' --confirm 120\n"
                  "discard --key steps/9f2c --as resolved --reason 'fixed by hand'",
                  f"{_DISCARDED}\n\n{_WHERE}\n\n{CONFIRMING}")
    _plan_options(discard, "discard")
    _discard_options(discard)
    discard.set_defaults(attempts="keep", pace="now", include_unrecoverable=False, respect_backoff=False)
    add_confirmation(discard)
    for parser in (plan, apply, requeue, discard):
        parser.set_defaults(graceful=True, needs_trail=True)


def _records(add: Adder) -> None:
    overrides = add.family("overrides", "list and watch overrides, and pause, stop, resume or undo one")
    listing = overrides("list", "list all overrides, newest first", "overrides.list_overrides", "overrides list")
    add_limit(listing)
    add_format(listing)
    show = overrides("show", "show one override: what it wrote, and the results of the items",
                     "overrides.show_override", "overrides show o1f0c --items")
    show.add_argument("--items", action="store_true", help="also the outcome and the result of every item")
    add_format(show)
    watch = overrides("watch", "follow an override until each item was executed, and record the result",
                      "overrides.watch_override", "overrides watch o1f0c", WATCHING)
    add_format(watch)
    undo = overrides("undo", "undo an override, for the items that nobody has changed since", "overrides.undo",
                     "overrides undo o1f0c --reason 'wrong filter'", CONFIRMING)
    add_confirmation(undo)
    resume = overrides("resume", "continue a paused, stopped or interrupted override", "overrides.resume",
                       "overrides resume o1f0c")
    resume.add_argument("--confirm", metavar="N", type=whole_number,
                        help="the number of items left; needed after a canary override has stopped")
    pause = overrides("pause", "pause a running override after the items it is writing", "overrides.pause",
                      "overrides pause o1f0c")
    stop = overrides("stop", "stop a running override after the items it is writing", "overrides.stop",
                     "overrides stop o1f0c")
    for parser in (show, watch, undo, resume, pause, stop):
        parser.add_argument("override", metavar="OVERRIDE", help="the override's id, or its unique beginning")
    for parser in (watch, undo, resume):
        parser.set_defaults(graceful=True)
    runner = add("runner", "carry out overrides that were confirmed with --detach", "runner.run",
                 "runner\nrunner --take-over\nrunner --once",
                 "SIGTERM, SIGINT and SIGHUP stop it after the items it is writing; the overrides are queued again.\n"
                 "Several runners on one PostgreSQL trail share the work.")
    runner.add_argument("--take-over", action="store_true",
                        help="also continue overrides of the last day whose console or terminal is gone")
    runner.add_argument("--once", action="store_true", help="end when nothing is left to do")
    runner.set_defaults(graceful=True, needs_trail=True)
    mcp = add("mcp", "let an agent read and submit plans, over standard input and output", "mcp.serve", "mcp",
              "It speaks MCP and needs retriage[mcp]. The agent can read, and propose changes with submit_plan. A\n"
              "person approves each plan with `retriage proposals`. With --read-only the agent can only read.")
    mcp.set_defaults(needs_trail=True)
    _proposals(add.family("proposals", "list plans that wait for somebody else, and approve, reject or withdraw one"))
    _trail(add.family("trail", "read, verify and export the audit log of overrides and refusals"))


def _proposals(add: Adder) -> None:
    listing = add("list", "list the proposals that are open, newest first", "proposals.list_proposals",
                  "proposals list\nproposals list --all --format json")
    listing.add_argument("--all", action="store_true", help="also decided and expired ones")
    add_limit(listing)
    add_format(listing)
    show = add("show", "show one proposal, and check every item of it again", "proposals.show_proposal",
               "proposals show p1f0c")
    add_format(show, ("table", "json", "jsonl"))
    approve = add("approve", "approve a proposal: its plan is carried out, exactly as proposed", "proposals.approve",
                  "proposals approve p1f0c\nproposals approve p1f0c --confirm 120 --detach", CONFIRMING)
    approve.add_argument("--reason", metavar="TEXT", default="", help="why; default: the reason of the proposal")
    approve.add_argument("--confirm", metavar="N", type=whole_number, help="the number of items that would change")
    add_detach(approve)
    approve.set_defaults(graceful=True)
    reject = add("reject", "reject a proposal", "proposals.reject", "proposals reject p1f0c --reason 'wrong filter'")
    reject.add_argument("--reason", metavar="TEXT", required=True, help="why; it is recorded in the trail")
    withdraw = add("withdraw", "withdraw a proposal of your own", "proposals.withdraw", "proposals withdraw p1f0c")
    withdraw.add_argument("--reason", metavar="TEXT", default="", help="why; it is recorded in the trail")
    for parser in (show, approve, reject, withdraw):
        parser.add_argument("proposal", metavar="PROPOSAL", help="the id of its plan, or its unique beginning")


def _trail(add: Adder) -> None:
    listing = add("list", "list records, newest first", "trail.list_records", "trail list --limit 20")
    add_limit(listing)
    add_format(listing)
    show = add("show", "show one record in full", "trail.show_record", "trail show 12")
    show.add_argument("seq", metavar="SEQ", type=positive_number, help="the record's number")
    verify = add("verify", "check that no record was altered; exits with 5 and names the first bad one",
                 "trail.verify", "trail verify\ntrail verify --anchor /mnt/safe/anchors")
    verify.add_argument("--anchor", metavar="FILE", help="the anchors to check against; default: the configured file")
    export = add("export", "export every record as jsonl or csv", "trail.export",
                 "trail export > trail.jsonl\ntrail export --format csv --items --output trail.csv")
    export.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
    export.add_argument("--items", action="store_true", help="also the outcome and the result of every item")
    export.add_argument("--output", metavar="FILE", help="write to a new file instead of stdout")
    unresolved = add("unresolved", "list writes whose outcome is not recorded yet", "trail.unresolved",
                     "trail unresolved")
    add_format(unresolved)


def _history(add: Adder) -> None:
    history = add.family("history", "record samples of all systems, and mark deploys and other events")
    record = history("record", "record once a minute what every system shows, until it is stopped", "history.record",
                     "history record\nhistory record --once",
                     "Only one process records at a time; others wait. Nothing is written to a watched system.\n"
                     "SIGTERM, SIGINT and SIGHUP end it after the current sample.")
    record.add_argument("--once", action="store_true", help="take one sample and end, for cron")
    record.set_defaults(graceful=True)
    mark = history("mark", "mark a deploy or another event; it is shown on every chart", "history.mark",
                   "history mark 'api v1.2.3'\nhistory mark 'failover of the main database' --at 15m")
    mark.add_argument("text", metavar="TEXT", help="what happened")
    mark.add_argument("--at", metavar="TIME", help="when, or how long ago; default: now")
    alerts = add("alerts", "evaluate the alert rules of the config every minute, and call their hooks",
                 "alerts.alerts", "alerts\nalerts --once --format json",
                 "With --once it exits with 6 if an alert is on. SIGTERM, SIGINT and SIGHUP end it.")
    alerts.add_argument("--once", action="store_true", help="evaluate once and print the alerts that are on, for cron")
    add_format(alerts)
    alerts.set_defaults(graceful=True, needs_trail=True)
    metrics = add("metrics", "print the figures of all systems once as OpenMetrics text, for a scraper",
                  "metrics.metrics", "metrics\nmetrics --output /var/lib/node_exporter/textfile/retriage.prom",
                  "It opens no port. Figures recorded in the last few minutes are not read again.")
    metrics.add_argument("--output", metavar="FILE", help="write to this file in one step, instead of stdout")
    metrics.set_defaults(needs_trail=True)
    report = add("report", "write a hand-over report, or one about an override, as Markdown or HTML", "report.report",
                 "report --since 12h --output handover.html\nreport > handover.md\nreport o1f0c --output audit.html",
                 "An HTML report is a single file without scripts. It loads nothing and prints well.")
    report.add_argument("override", metavar="OVERRIDE", nargs="?",
                        help="report about this override, for an auditor; default: a hand-over report")
    report.add_argument("--since", metavar="DURATION", default="12h", help="how far back it looks; default: 12h")
    report.add_argument("--format", choices=("markdown", "html"), help="default: by the file's name, else markdown")
    report.add_argument("--output", metavar="FILE", help="write to a new file instead of stdout")
    report.set_defaults(needs_trail=True)


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
    add_format(mapping, of="format of the items listed with --output; ")
    attach = add("attach", "find the queues behind a URL and add them to the config", "attach.attach",
                 "attach postgresql://oncall@db/app\nattach 'redis://:${REDIS_PASSWORD}@cache:6379/0'\n"
                 "attach /srv/jobs.db --yes",
                 "It only reads the system, shows what it found with counts, and asks before it writes the config.\n"
                 "A password comes from a passfile or from a variable; the config gets ${NAME}, not the password.")
    attach.add_argument("place", metavar="URL|FILE|FOLDER", help="a URL, an SQLite file, or a folder with task files")
    attach.add_argument("--yes", action="store_true", help="add what was found without asking")
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
    # Plugins offer switches of their own. They are known only when the backends are open, and are checked then.
    parser.set_defaults(takes_switches=True, action=action)


def _requeue_options(parser: Parser) -> None:
    add_attempts(parser)
    add_pace(parser)
    parser.add_argument("--include-unrecoverable", action="store_true",
                        help="also items whose error is configured as unrecoverable")
    parser.add_argument("--respect-backoff", action="store_true",
                        help="run no item before its policy's backoff is over, where the backend can do that")


def _discard_options(parser: Parser) -> None:
    parser.add_argument("--as", metavar="KIND", dest="kind",
                        help="how to discard, where a system has several ways: cancelled or resolved (workflow steps)")


def _selection(parser: Parser) -> None:
    _backend(parser)
    parser.add_argument("--where", metavar="FILTER", default="", help="only items that match; see below")
    add_format(parser)


def _backend(parser: Parser) -> None:
    parser.add_argument("--backend", metavar="NAME", action="append", help="only this backend; may be repeated")
