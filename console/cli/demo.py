"""`demo` and `tour`: build or reuse the demo, start its workers, and open the console on it."""

from __future__ import annotations

from argparse import Namespace

from console.cli.context import CommandContext, DemoOptions, DemoWorld
from console.cli.progress import build_progress
from console.cli.render import note, print_text
from console.core.faults import UsageFault


def demo(args: Namespace, context: CommandContext) -> int:
    if args.no_open and args.postgres:
        raise UsageFault(
            "The demo's PostgreSQL runs only while the console is open", fix="Leave out --no-open or --postgres."
        )
    options = DemoOptions(args.dir, args.scale, args.seed, args.speed, args.reset, args.postgres, args.read_only)
    world = _build(options, context)
    if args.no_open:
        print_text(str(world.config), 4096)
        return 0
    return _open(world, args, context, guided=False)


def tour(args: Namespace, context: CommandContext) -> int:
    return _open(_build(DemoOptions(args.dir, read_only=args.read_only), context), args, context, guided=True)


def _build(options: DemoOptions, context: CommandContext) -> DemoWorld:
    with build_progress() as progress:
        world = context.demo_world(options, progress)
    if world.message:
        note(world.message)
    return world


def _open(world: DemoWorld, args: Namespace, context: CommandContext, *, guided: bool) -> int:
    note(f"The demo's config is {world.config}. Use it with `retriage --config`; `retriage demo --reset` rebuilds it.")
    if not args.read_only:
        context.start_demo_workers(world)
    return context.open_console(str(world.config), guided=guided)
