"""`map`: look at a database, propose how to attach it, and list its first items."""

from __future__ import annotations

from argparse import Namespace

from console.cli.context import CommandContext, MappingProposal
from console.cli.items import columns
from console.cli.render import RowFormat, chosen_format, new_file, note, print_block, print_rows, stdout
from console.core.backend import PageRequest
from console.core.export import FIELDS, record
from console.core.faults import UsageFault
from console.core.query import Filter

FIRST = 10


def propose(args: Namespace, context: CommandContext) -> int:
    if args.format and not args.output:
        raise UsageFault(
            "--format applies to the list of items, which needs --output",
            fix="Add --output FILE, or leave out --format.",
        )
    proposal = context.propose_mapping(args.place, args.table)
    try:
        for line in proposal.notes:
            note(line)
        if args.output:
            with new_file(args.output) as file:  # private: its content decides what is written to a database
                file.write(proposal.text)
            note(f"Written to {args.output}.")
            _list_items(proposal, args.format)
        else:
            print_block(proposal.text.rstrip("\n"), "")
            if stdout().isatty():
                _list_items(proposal, args.format)
    finally:
        if proposal.backend is not None:
            proposal.backend.close()
    return 0 if proposal.backend is not None else 1


def _list_items(proposal: MappingProposal, wanted: str | None) -> None:
    """Print the first items in any condition, as this mapping would list them."""
    if proposal.backend is None:
        return
    now = proposal.backend.now()
    page = proposal.backend.page(PageRequest(Filter.parse("condition:*"), now, limit=FIRST))
    printed = print_rows(page.items, RowFormat(FIELDS, record, columns(now)), wanted)
    if not printed and chosen_format(wanted) == "table":
        note("The table is empty.")
