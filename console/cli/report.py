"""`report`: a hand-over report, or one about an override, as Markdown or HTML."""

from __future__ import annotations

from argparse import Namespace
from datetime import timedelta

from console.cli.context import CommandContext
from console.cli.render import new_file, note, stdout
from console.core.faults import UsageFault
from console.core.text import parse_duration
from console.report.audit import audit
from console.report.handover import hand_over
from console.report.html import write_html
from console.report.markdown import write_markdown
from console.report.present import present

_LONGEST = timedelta(days=30)


def report(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    if args.override:
        document = audit(session, args.override)
    else:
        since = _since(args.since)
        now = present(session)
        document = hand_over(session, now, now.at - since)
    write = write_html if _is_html(args) else write_markdown
    if not args.output:
        write(document, stdout())
        return 0
    with new_file(args.output) as file:
        write(document, file)
    note(f"Wrote {args.output}.")
    return 0


def _is_html(args: Namespace) -> bool:
    if args.format is not None:
        return bool(args.format == "html")
    return bool(args.output) and args.output.lower().endswith((".html", ".htm"))


def _since(text: str) -> timedelta:
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise UsageFault(f"--since: {error}") from None
    if not timedelta(minutes=5) <= found <= _LONGEST:
        raise UsageFault(f"--since {text} is out of range", fix="Use a duration from 5m to 30d.")
    return found
