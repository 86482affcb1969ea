"""`demo` and `tour`: build or reuse the demo, start its workers, and open the console on it."""

from __future__ import annotations

from argparse import Namespace

from console.cli.context import CommandContext, Demo, DemoOptions
from console.cli.progress import build_progress
from console.cli.render import note, print_text
from console.core.faults import UsageFault


def demo(args: Namespace, context: CommandContext) -> int:
    if args.no_open and args.postgres:
        raise UsageFault(
            "The demo's PostgreSQL runs only while the console is open", fix="Leave out --no-open or --postgres."
        )
    options = DemoOptions(
        args.dir, args.scale, args.seed, args.speed, args.reset, args.postgres, args.read_only, redis=not args.no_open
    )
    built = _build(options, context)
    if args.no_open:
        print_text(str(built.config), 4096)
        return 0
    return _open(built, args, context, guided=False)


def tour(args: Namespace, context: CommandContext) -> int:
    options = DemoOptions(args.dir, read_only=args.read_only, redis=True)
    return _open(_build(options, context), args, context, guided=True)


def _build(options: DemoOptions, context: CommandContext) -> Demo:
    with build_progress() as progress:
        built = context.build_demo(options, progress)
    if built.message:
        note(built.message)
    return built


def _open(built: Demo, args: Namespace, context: CommandContext, *, guided: bool) -> int:
    note(f"The demo's config is {built.config}. Use it with `retriage --config`; `retriage demo --reset` rebuilds it.")
    if not args.read_only:
        context.start_demo_workers(built)
    return context.open_console(str(built.config), guided=guided)
