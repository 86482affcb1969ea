"""One backend at a glance."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from console.core.faults import Fault
from console.core.item import NEEDS_EYES, Condition
from console.core.text import CONDITION_WORDS, ago
from console.ui import cells, safe
from console.ui.health import Health
from console.ui.widgets.charts import spark

if TYPE_CHECKING:
    from console.core.backend import Count

_COLOURS = {"error": "$error", "warning": "$warning", "calm": "$calm", "good": "$success", "muted": "$muted"}


def _words(fault: Fault) -> str:
    """Without where: the card is where."""
    text = f"{fault.sentence}: {fault.detail}" if fault.detail else fault.sentence
    return f"{text}. {fault.fix}" if fault.fix else text


class BackendCard(Widget, can_focus=True):
    """Reachable or not and since when, what needs eyes, the last day, its policy, what is odd about it."""

    health: reactive[Health | None] = reactive(None)
    now: reactive[datetime | None] = reactive(None, repaint=False)

    class Chosen(Message):
        """A click on the card."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, name: str) -> None:
        super().__init__()
        self.backend = name

    def render(self) -> Content:
        health, now = self.health, self.now
        if health is None or now is None:
            return Content("")
        width = max(self.size.width, 20)
        lines = [self._counts(health), self._past(health, now), self._policy(health, width)]
        lines += [
            self._cut(safe.phrase("[$warning]⚠[/] [$muted]$text[/]", text=text), width)
            for text in self._oddities(health)
        ]
        return Content("\n").join(lines)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:  # noqa: ARG002
        return 3 + (len(self._oddities(self.health)) if self.health else 0)

    def watch_health(self, before: Health | None, health: Health | None) -> None:
        if health is None:
            return
        if len(self._oddities(before)) != len(self._oddities(health)):
            self.refresh(layout=True)
        self.set_class(health.fault is not None, "down")
        self.border_title = safe.phrase("[b]$name[/] [$muted]$plugin[/]", name=health.name, plugin=health.plugin)
        self._say_state(health)

    def watch_now(self, before: datetime | None, now: datetime | None) -> None:
        """Only an age changes with time, and rarely: a card is not painted every second."""
        oldest = None if self.health is None else self.health.oldest
        if before is None or now is None or (oldest is not None and ago(before - oldest) != ago(now - oldest)):
            self.refresh()

    def _say_state(self, health: Health) -> None:
        since = "" if health.since is None else f"{health.since:%H:%M:%S}Z"
        if health.fault is not None:
            self.border_subtitle = safe.phrase("[b $error]✗ down[/] [$muted]since $since[/]", since=since)
        elif not health.answered:
            self.border_subtitle = Content.from_markup("[$muted]◌ asking…[/]")
        else:
            self.border_subtitle = safe.phrase("[$success]● live[/] [$muted]since $since[/]", since=since)

    def _counts(self, health: Health) -> Content:
        if health.fault is not None and not health.counts:
            return self._cut(safe.shown(_words(health.fault), "$error"), self.size.width)
        if not health.counts:
            return Content.from_markup("[$muted]counting…[/]")
        known = ((condition, health.counts.get(condition)) for condition in NEEDS_EYES)
        counted = [(condition, count) for condition, count in known if count is not None]
        whole = self._counted([pair for pair in counted if pair[1].value or pair[0] is not Condition.UNKNOWN])
        if whole.cell_length <= self.size.width:
            return whole
        return self._cut(self._counted([pair for pair in counted if pair[1].value]), self.size.width)

    def _counted(self, counts: list[tuple[Condition, Count]]) -> Content:
        parts = []
        for condition, count in counts:
            symbol, word = CONDITION_WORDS[condition]
            colour = _COLOURS[cells.TONES[condition]] if count.value else "$muted"
            parts.append(
                safe.phrase(
                    f"[{colour}]$symbol [b]$count[/b][/] [$muted]$word[/]",
                    symbol=symbol,
                    count=cells.count(count),
                    word=word,
                )
            )
        return Content("  ").join(parts)

    def _past(self, health: Health, now: datetime) -> Content:
        if health.fault is not None and health.counts:
            return self._cut(safe.shown(_words(health.fault), "$error"), self.size.width)
        parts = []
        if health.recent is not None:
            failed = sum(health.recent.counts)
            parts.append(
                safe.phrase(
                    "[$muted]24h[/] [$warning]$spark[/] $count [$muted]failed[/]",
                    spark=spark(health.recent.counts),
                    count=cells.thousands(failed),
                )
            )
        if health.oldest is not None:
            parts.append(safe.phrase("[$muted]oldest[/] $age", age=ago(now - health.oldest)))
        elif health.recent is not None and not sum(health.recent.counts) and not health.recent.before:
            parts.append(Content.from_markup("[$muted]no failures[/]"))
        return self._cut(Content("   ").join(parts), self.size.width)

    def _policy(self, health: Health, width: int) -> Content:
        text = "policy unknown" if health.policy is None else str(health.policy)
        return self._cut(safe.phrase("[$muted]$policy[/]", policy=text), width)

    def _oddities(self, health: Health | None) -> list[str]:
        warnings = [] if health is None else health.warnings
        return (
            warnings if len(warnings) <= 2 else [warnings[0], f"and {len(warnings) - 1} more: retriage check tells all"]
        )

    def _cut(self, content: Content, width: int) -> Content:
        return content.truncate(max(width, 1), ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            self.post_message(self.Chosen(self.backend))
