"""A card for one system: its state, counts, recent failures, policy and warnings."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from console.core.faults import Fault, sentences
from console.core.item import NEEDS_ATTENTION, Condition
from console.core.text import ago, as_of
from console.ui import cells, safe
from console.ui.health import SLOW_REFRESH, Health
from console.ui.widgets.charts import spark

if TYPE_CHECKING:
    from console.core.backend import Count

_COLOURS = {"error": "$error", "warning": "$warning", "calm": "$calm", "good": "$success", "muted": "$muted"}


def _without_name(fault: Fault) -> str:
    """The fault without the system's name, which is the card's title."""
    return sentences(fault.message, fault.fix)


class CardAges(NamedTuple):
    """What of a card depends on the time, as it is shown."""

    oldest: str
    """The age of the oldest failure."""
    counts: str
    """How old the counts are, if they are older than the refresh."""
    failures: str


NO_AGES = CardAges("", "", "")


def ages_of(health: Health, now: datetime, refresh: timedelta) -> CardAges:
    def read(figure: str, every: timedelta) -> str:
        at = health.read_at.get(figure)
        return "" if at is None else as_of(now - at, every)

    oldest = "" if health.oldest is None else ago(now - health.oldest)
    return CardAges(oldest, read("counts", refresh), read("failures", max(refresh, SLOW_REFRESH)))


class BackendCard(Widget, can_focus=True):
    """`health` and `ages` are set by the screen. It is repainted when one of them changes, not every second."""

    health: reactive[Health] = reactive(Health(""))
    ages: reactive[CardAges] = reactive(NO_AGES)

    class Chosen(Message):
        """The card was double-clicked."""

    def __init__(self, health: Health) -> None:
        super().__init__()
        self.backend = health.name
        self.set_reactive(BackendCard.health, health)

    def on_mount(self) -> None:
        self.watch_health(self.health, self.health)

    def render(self) -> Content:
        health = self.health
        width = max(self.size.width, 20)
        lines = [self._counts(health), self._past(health), self._policy(health, width)]
        lines += [
            self._cut(safe.phrase("[$warning]⚠[/] [$muted]$text[/]", text=text), width)
            for text in self._warnings(health)
        ]
        return Content("\n").join(lines)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:  # noqa: ARG002
        return 3 + len(self._warnings(self.health))

    def watch_health(self, before: Health, health: Health) -> None:
        if len(self._warnings(before)) != len(self._warnings(health)):
            self.refresh(layout=True)
        self.set_class(health.fault is not None, "down")
        plugin = f" {health.plugin}" if health.plugin else ""
        mode = " read-only" if health.read_only else ""
        self.border_title = safe.phrase(
            "[b]$name[/][$muted]$plugin[/][$accent]$mode[/]", name=health.name, plugin=plugin, mode=mode
        )
        self.border_subtitle = self._state(health)

    def _state(self, health: Health) -> Content:
        since = "" if health.since is None else f"{health.since:%H:%M:%S}Z"
        if health.fault is not None:
            return safe.phrase("[b $error]✗ down[/] [$muted]since $since[/]", since=since)
        if not health.answered:
            return Content.from_markup("[$muted]◌ connecting…[/]")
        return safe.phrase("[$success]● live[/] [$muted]since $since[/]", since=since)

    def _counts(self, health: Health) -> Content:
        if health.fault is not None and not health.counts:
            return self._cut(safe.shown(_without_name(health.fault), "$error"), self.size.width)
        if not health.counts:
            return Content.from_markup("[$muted]counting…[/]")
        known = ((condition, health.counts.get(condition)) for condition in NEEDS_ATTENTION)
        counted = [(condition, count) for condition, count in known if count is not None]
        age = safe.phrase("[$muted]  $age[/]", age=self.ages.counts) if self.ages.counts else Content("")
        whole = self._counted([pair for pair in counted if pair[1].value or pair[0] is not Condition.UNKNOWN])
        if whole.cell_length + age.cell_length <= self.size.width:
            return Content.assemble(whole, age)
        shown = self._counted([pair for pair in counted if pair[1].value])
        return self._cut(Content.assemble(shown, age), self.size.width)

    def _counted(self, counts: list[tuple[Condition, Count]]) -> Content:
        parts = []
        for condition, count in counts:
            colour = _COLOURS[cells.tone(condition)] if count.value else "$muted"
            parts.append(
                safe.phrase(
                    f"[{colour}]$symbol [b]$count[/b][/] [$muted]$word[/]",
                    symbol=condition.symbol,
                    count=cells.count(count),
                    word=condition,
                )
            )
        return Content("  ").join(parts)

    def _past(self, health: Health) -> Content:
        if health.fault is not None and health.counts:
            return self._cut(safe.shown(_without_name(health.fault), "$error"), self.size.width)
        parts = []
        if health.recent is not None:
            failed = sum(health.recent.counts)
            parts.append(
                safe.phrase(
                    "[$muted]24h[/] [$warning]$spark[/] $count [$muted]failures[/]",
                    spark=spark(health.recent.counts),
                    count=cells.thousands(failed),
                )
            )
        if self.ages.oldest:
            parts.append(safe.phrase("[$muted]oldest[/] $age", age=self.ages.oldest))
        elif health.recent is not None and not sum(health.recent.counts) and not health.recent.before:
            parts.append(Content.from_markup("[$muted]no failures[/]"))
        if health.recent is not None and self.ages.failures:
            parts.append(safe.phrase("[$muted]$age[/]", age=self.ages.failures))
        if health.on_request:
            parts.append(Content.from_markup("[$muted]large table: ctrl+r reads its history[/]"))
        return self._cut(Content("   ").join(parts), self.size.width)

    def _policy(self, health: Health, width: int) -> Content:
        text = "" if health.policy is None else str(health.policy)
        return self._cut(safe.phrase("[$muted]$policy[/]", policy=text), width)

    def _warnings(self, health: Health) -> list[str]:
        warnings = health.warnings
        if len(warnings) <= 2:
            return warnings
        return [warnings[0], f"and {len(warnings) - 1} more warnings: run `retriage check`"]

    def _cut(self, content: Content, width: int) -> Content:
        return content.truncate(max(width, 1), ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            self.post_message(self.Chosen())
