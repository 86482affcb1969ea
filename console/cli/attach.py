"""`attach`: find the queues behind a URL, show what needs attention in them, and add them to the config."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

from console.cli.context import AttachableQueue, CommandContext
from console.cli.render import ask, note, note_fault, print_block, stdout
from console.core.backend import Count
from console.core.item import NEEDS_ATTENTION

NOTHING = 1


def attach(args: Namespace, context: CommandContext) -> int:
    found = context.find_queues(args.place)
    for fault in found.faults:
        note_fault(fault)
    new = [queue for queue in found.queues if queue.attached_as is None]
    for queue in found.queues:
        note(_line(queue))
        if queue.note and queue in new:
            note(f"  {queue.note}")
    if not found.queues:
        if found.faults:
            return found.faults[0].exit_code
        note("No queue was found there. For a table of your own, `retriage map` proposes a mapping.")
        return NOTHING
    if not new:
        return 0
    print_block(f"backends:\n{context.section_of(new)}".rstrip("\n"), "")
    return _add(args, context, new, read_only=args.read_only or found.read_only)


def _line(queue: AttachableQueue) -> str:
    if queue.attached_as is not None:
        return f"{queue.system}: already in the config as {queue.attached_as}."
    if queue.counts is None:
        return f"{queue.name}: {queue.system}. What needs attention could not be counted."
    counted = ", ".join(
        f"{_number(queue.counts[condition])} {condition}"
        for condition in NEEDS_ATTENTION if condition in queue.counts and queue.counts[condition].value
    )
    return f"{queue.name}: {queue.system}. {counted or 'Nothing needs attention'}."


def _number(count: Count) -> str:
    return f"{'~' if count.estimated else ''}{count.value}{'' if count.exact or count.estimated else '+'}"


def _add(args: Namespace, context: CommandContext, new: Sequence[AttachableQueue], *, read_only: bool) -> int:
    path = context.config_path()
    if read_only:
        note(f"Read-only: nothing was written. Add these lines to {path}.")
        return 0
    if not args.yes:
        if not (sys.stdin.isatty() and stdout().isatty()):
            note(f"Nothing was written. Add these lines to {path}, or use --yes.")
            return 0
        if ask(f"Add this to {path}? [y/N] ").lower() not in ("y", "yes"):
            note("Nothing was written.")
            return 0
    if not context.add_to_config(new):
        note(f"Nothing can be added to {path} safely. Add these lines below `backends:` yourself.")
        return NOTHING
    listed = ", ".join(queue.name for queue in new)
    note(f"Added {listed} to {path}. `retriage` opens the console, `retriage check` examines them.")
    return 0
