"""`runner`: carry out overrides that were confirmed with --detach, and those whose console is gone."""

from __future__ import annotations

from argparse import Namespace
from threading import Lock

from console.cli.context import CommandContext
from console.cli.plans import operations_of
from console.cli.render import note
from console.core.faults import UsageFault
from console.core.runner import Runner
from console.core.text import instant


def run(args: Namespace, context: CommandContext) -> int:
    session = context.session()
    operations = operations_of(session)
    operations.require_writable()
    if not session.backends:
        raise UsageFault("No backend could be opened, so there is nothing to carry out")
    lock = Lock()

    def report(text: str) -> None:
        with lock:
            note(f"{instant(session.clock.now().replace(microsecond=0))} {text}")

    for unavailable in session.unavailable:
        report(f"{unavailable.name} cannot be opened: {unavailable.fault}")
    runner = Runner(
        operations, session.clock, session.who, session.origin, session.stop, report, take_over=args.take_over
    )
    report(f"Runner for {', '.join(backend.name for backend in session.backends)}.")
    runner.run(once=args.once)
    report("Runner stopped." if session.stop.requested else "Nothing is left to do.")
    return 0
