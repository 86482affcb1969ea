"""Writes a report from the console: a hand-over, or one about an override."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TextIO

from console.core.faults import Refused
from console.core.paths import expanded
from console.core.session import Session
from console.ui import export
from console.ui.backend_calls import off_loop
from console.ui.screens.base import BaseScreen
from console.ui.screens.export import REPORT, ExportScreen

SHIFT = timedelta(hours=12)
"""How far back a hand-over report looks."""


def ask_for_report(screen: BaseScreen, override_id: str | None = None) -> None:
    """Ask for a file, and write the report to it."""
    what = "a hand-over report" if override_id is None else f"a report about override {override_id}"
    stem = "handover" if override_id is None else f"override-{override_id}"
    dialog = ExportScreen(what, stem, screen.session.clock.now(), REPORT)

    def chosen(path: str | None) -> None:
        if path:
            screen.start(partial(_write, screen, path, override_id), "report", exclusive=False)

    screen.app.push_screen(dialog, chosen)


async def _write(screen: BaseScreen, chosen: str, override_id: str | None) -> None:
    path, session = expanded(chosen, Refused), screen.session
    await off_loop(lambda: write_report(session, path, override_id))
    screen.console_app.say(f"Wrote {path}")


def write_report(session: Session, path: Path, override_id: str | None) -> None:
    """Collect the facts and write the file. A report that fails leaves no file."""
    from console.report.audit import audit
    from console.report.handover import hand_over
    from console.report.html import write_html
    from console.report.markdown import write_markdown
    from console.report.present import present

    def write(out: TextIO) -> int:
        if override_id is not None:
            document = audit(session, override_id)
        else:
            now = present(session)
            document = hand_over(session, now, now.at - SHIFT)
        (write_markdown if path.suffix == ".md" else write_html)(document, out)
        return 0

    export.write_with(path, write)
