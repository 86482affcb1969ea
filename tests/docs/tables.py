"""The README's generated tables. `python -m tests.docs.tables` writes them into it again."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from console.cli.parser import build_parser
from console.ui.actions import key_table

README = Path(__file__).parents[2] / "README.md"


def _choices(parser: argparse.ArgumentParser) -> Any:
    return next((action for action in parser._actions if isinstance(action.choices, dict)), None)


def _takes(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What a command's own line may hold, the shared options left out."""
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if action.option_strings and names[0] not in ("--help", "--config", "--read-only", "--version"):
            yield f"`{names[0]}`"


def _positional(parser: argparse.ArgumentParser) -> str:
    words = [str(action.metavar or action.dest).upper() for action in parser._actions if not action.option_strings]
    return "".join(f" {word}" for word in words).replace("|", "\\|")


def _row(name: str, parser: argparse.ArgumentParser, summary: str) -> str:
    family = _choices(parser)
    if family is not None:
        return f"| `{name}` | {summary}: {', '.join(f'`{each}`' for each in family.choices)} | |"
    return f"| `{name}{_positional(parser)}` | {summary} | {' '.join(_takes(parser))} |"


def command_table() -> str:
    """All commands as Markdown."""
    commands = _choices(build_parser("0"))
    rows = [_row(told.dest, commands.choices[told.dest], told.help) for told in commands._choices_actions]
    return "\n".join(["| command | does | takes |", "|---|---|---|", *rows])


TABLES = {"keys": key_table, "commands": command_table}


def between(name: str, text: str) -> re.Match[str]:
    """What the README has there, with the empty lines around it."""
    found = re.search(rf"<!-- {name}: generated -->(.*?)<!-- /{name} -->", text, re.S)
    assert found, f"the README has no place for {name}"
    return found


def main() -> None:
    text = README.read_text()
    for name, table in TABLES.items():
        found = between(name, text)
        text = f"{text[: found.start(1)]}\n\n{table()}\n\n{text[found.end(1) :]}"
    README.write_text(text)


if __name__ == "__main__":
    main()
