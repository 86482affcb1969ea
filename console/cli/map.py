"""`map`: look at a database, recognise a preset or propose a mapping, and show what it would list."""

from __future__ import annotations

from argparse import Namespace

from console.cli.doors import Doors, Sketch
from console.cli.files import new_file
from console.cli.items import columns
from console.cli.render import Shape, chosen_format, note, print_block, print_rows, stdout
from console.core.backend import PageRequest
from console.core.faults import UsageFault
from console.core.fields import FIELDS, record
from console.core.query import Filter

FIRST = 10


def propose(args: Namespace, doors: Doors) -> int:
    if args.format and not args.output:
        raise UsageFault("the proposal is YAML; --format is of the items", fix="Add --output FILE, or leave it out.")
    sketch = doors.sketch(args.place, args.table)
    try:
        for line in sketch.told:
            note(line)
        if args.output:
            with new_file(args.output) as file:  # what stands in it decides what is written to a database
                file.write(sketch.text)
            note(f"Written to {args.output}.")
            _show(sketch, args.format)
        else:
            print_block(sketch.text.rstrip("\n"), "")
            if stdout().isatty():
                _show(sketch, args.format)
    finally:
        if sketch.backend is not None:
            sketch.backend.close()
    return 0 if sketch.backend is not None else 1


def _show(sketch: Sketch, wanted: str | None) -> None:
    """The first items as they would appear, whatever their condition."""
    if sketch.backend is None:
        return
    now = sketch.backend.now()
    page = sketch.backend.page(PageRequest(Filter.parse("condition:*"), now, limit=FIRST))
    printed = print_rows(page.items, Shape(FIELDS, record, columns(now)), wanted)
    if not printed and chosen_format(wanted) == "table":
        note("The table is empty.")
