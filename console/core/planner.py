"""Makes plans: reads what is selected, decides item by item, and stores the result while reading."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from console.core.action_rules import CANNOT_BE_UNDONE, DELETES
from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    Abilities,
    Action,
    Backend,
    Draft,
    Operation,
    PageRequest,
    Requeues,
    Throughput,
    UndoKind,
    WarnsOfPlans,
)
from console.core.faults import BackendFault, NotNarrowed, TooMany, TrailUnavailable, Unreachable, UsageFault
from console.core.item import ItemKey
from console.core.listing import Listing, SignatureMatch, page_of
from console.core.pace import Now, Pace
from console.core.plan import (
    BLOCK_ITEMS,
    FIRST_SKIPPED,
    PLAN_LIFETIME,
    BackendPart,
    Block,
    Marked,
    Matching,
    Plan,
    PlanHash,
    Selection,
    pack,
)
from console.core.ports import Clock, PlanStore, Stop
from console.core.query import NATURAL, Field, Term
from console.core.text import duration

_PAGE = 500
_REASONS_KEPT = 200
"""Reasons, causes and warnings are counted by their text, up to this many different texts. The rest is `others`."""
_SOON = timedelta(minutes=1)
NOT_ATTACHED = "it is not configured, or could not be opened"
_NO_SUCH_ITEM = Notice("No such item.")


@dataclass(slots=True)
class PlanBuilder:
    """A plan while it is made: its rows are numbered, hashed, stored and counted batch by batch."""

    trail: PlanStore | None
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    hash: PlanHash = field(default_factory=PlanHash)
    changes: int = 0
    refused: int = 0
    by_condition: Counter[str] = field(default_factory=Counter)
    by_cause: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    advice: dict[str, Advice] = field(default_factory=dict)

    @property
    def selected(self) -> int:
        return self.changes + self.refused

    def add(self, drafts: Sequence[Draft]) -> None:
        for start in range(0, len(drafts), BLOCK_ITEMS):
            self._add(drafts[start : start + BLOCK_ITEMS])

    def _add(self, drafts: Sequence[Draft]) -> None:
        changing = [draft for draft in drafts if draft.skipped is None]
        refused = [draft for draft in drafts if draft.skipped is not None]
        numbered = (FIRST_SKIPPED + self.refused, refused), (self.changes, changing)
        blocks = [_block(first, some) for first, some in numbered if some]
        self.changes += len(changing)
        self.refused += len(refused)
        for summary, times in Counter(draft[3:] for draft in drafts).items():
            self._count(times, *summary)
        for block in blocks:
            self.hash.add(block)
        if self.trail is not None:
            self.trail.add_blocks(self.nonce, blocks)

    def _count(
        self, times: int, condition: str, signature: str | None, skipped: Notice | None, warning: Notice | None
    ) -> None:
        if skipped is not None:
            self._count_notice(self.skipped, skipped, times)
            return
        self.by_condition[condition] += times
        _count(self.by_cause, signature or "no error text", times)
        if warning is not None:
            self._count_notice(self.warnings, warning, times)

    def forecast(self, throughput: Throughput | None, changes: int) -> None:
        """Say how long the system needs for the items of one backend, unless they are soon done."""
        if throughput is None or throughput.time_for(changes) <= _SOON:
            return
        takes = f"Its system takes at most {throughput.items} items every {duration(throughput.every)}"
        _count(self.warnings, f"{takes}, so it needs about {duration(throughput.time_for(changes))}.", changes)

    def warn(self, notice: Notice, times: int) -> None:
        self._count_notice(self.warnings, notice, times)

    def _count_notice(self, counter: Counter[str], notice: Notice, times: int) -> None:
        _count(counter, notice.text, times)
        if notice.advice is not None and notice.text in counter:
            self.advice[notice.text] = notice.advice

    def seal(
        self,
        operation: Operation,
        pace: Pace,
        selection: str,
        parts: Iterable[BackendPart],
        now: datetime,
        undo_of: str | None = None,
    ) -> Plan:
        plan = Plan(
            self.nonce,
            now,
            now + PLAN_LIFETIME,
            operation,
            pace,
            selection,
            tuple(parts),
            dict(self.by_condition),
            dict(self.by_cause),
            dict(self.skipped),
            dict(self.warnings),
            dict(self.advice),
            undo_of,
        )
        sealed = replace(plan, hash=self.hash.seal(plan))
        if self.trail is not None:
            self.trail.seal(sealed)
        return sealed

    def discard(self) -> None:
        """Remove what was stored. A failure is ignored, because the fault that led here is more important."""
        if self.trail is not None:
            with suppress(TrailUnavailable):
                self.trail.discard(self.nonce)


def _block(first: int, drafts: Sequence[Draft]) -> Block:
    keys, units, befores, _, _, skipped, warnings = zip(*drafts, strict=True)
    return pack(first, keys, units, befores, _texts(skipped), _texts(warnings))


def deletes_items(abilities: Abilities) -> bool:
    """Whether a discard deletes items."""
    return abilities.discard is not None and abilities.discard.deletes


def read_only_notice(backend: str) -> Notice:
    """Why nothing in this backend will be changed."""
    return Notice(f"{backend} is read-only in the config.")


def _cannot(backend: Backend, operation: Operation) -> Notice:
    """Why a backend does not have this action."""
    text = f"{backend.name} cannot {operation.action.replace('_', ' ')} items."
    if operation.action == Action.DISCARD and isinstance(backend, Requeues):
        text += f" {backend.abilities.no_discard}"
    return Notice(text)


def _texts(notices: Sequence[Notice | None]) -> list[str | None]:
    return [None if notice is None else notice.text for notice in notices]


def _count(counter: Counter[str], text: str, times: int = 1) -> None:
    counter[text if text in counter or len(counter) < _REASONS_KEPT else "others"] += times


def _in_order(keys: Sequence[ItemKey], drafts: Iterable[Draft]) -> list[Draft]:
    """Drafts in the order of the keys, with the items of one unit together at the place of the first."""
    position = {str(key): n for n, key in enumerate(keys)}
    of_unit: dict[str, int] = {}
    found = sorted(drafts, key=lambda draft: position.get(draft.key, len(position)))
    for draft in found:
        of_unit.setdefault(draft.unit or draft.key, position.get(draft.key, len(position)))
    return sorted(found, key=lambda draft: of_unit[draft.unit or draft.key])


def _splits_unit(drafts: Sequence[Draft], n: int) -> bool:
    """Whether a cut before draft `n` is inside a unit."""
    return 0 < n < len(drafts) and drafts[n].unit != "" and drafts[n].unit == drafts[n - 1].unit


def _end_of_unit(drafts: Sequence[Draft], limit: int, most: int) -> int:
    """The number of drafts up to the limit, or a few more, so that the last unit is complete; without that unit if it
    has more drafts than `most` leaves room for."""
    end = limit
    while _splits_unit(drafts, end):
        end += 1
    if end > most:
        end = limit
        while _splits_unit(drafts, end):
            end -= 1
    return end


class Planner:
    """Makes one plan from a selection in several backends."""

    def __init__(
        self, backends: Mapping[str, Backend], trail: PlanStore | None, clock: Clock, max_items: int, stop: Stop,
        read_only: Collection[str] = (),
    ) -> None:
        self._backends = backends
        self._trail = trail
        self._clock = clock
        self._max_items = max_items
        self._stop = stop
        self._read_only = read_only
        """The names of backends that must not be changed."""
        self._match: SignatureMatch | None = None

    def propose(self, selection: Selection, operation: Operation, pace: Pace) -> Plan:
        if operation.action == Action.DISCARD and not isinstance(pace, Now):
            raise UsageFault("A discard has no pace: a discarded item does not run", fix="Discard without a pace.")
        self._require_narrowed(selection)
        description, selection = str(selection), self._first_of_all(selection)
        self._require_few(selection)
        builder = PlanBuilder(self._trail)
        try:
            parts = [
                part
                for backend in self._meant(selection)
                if (part := self._part(builder, backend, selection, operation)) is not None
            ]
            if self._stop.requested:
                raise UsageFault("Stopped before the plan was complete", fix="Nothing was stored.")
            return builder.seal(operation, pace, description, parts, self._clock.now())
        except TrailUnavailable:
            raise  # the rows cannot be removed now; the trail purges unsealed plans later
        except BaseException:
            builder.discard()
            raise

    def _require_narrowed(self, selection: Selection) -> None:
        if isinstance(selection, Matching) and not selection.everything and not selection.filter.narrows:
            raise NotNarrowed(fix="Narrow it with a filter.", advice=Advice(Step.SELECT_ALL))

    def _first_of_all(self, selection: Selection) -> Selection:
        """With a sort column, `limit` counts over all backends together, as in the list."""
        if not isinstance(selection, Matching) or selection.limit is None or selection.sort.field is None:
            return selection
        backends = self._meant(selection)
        if len(backends) < 2:
            return selection
        listing = Listing(backends, selection.filter, self._clock.now(), selection.sort, selection.limit, self._stop)
        keys = tuple(item.key for item in listing)
        for fault in listing.faults.values():
            raise fault
        return Marked(keys)

    def _require_few(self, selection: Selection) -> None:
        """Check the number before reading: marked items are all read at once, to keep units together."""
        if isinstance(selection, Marked) and len(set(selection.keys)) > self._max_items:
            raise self._too_many(selection)

    def _meant(self, selection: Selection) -> list[Backend]:
        named = {key.backend for key in selection.keys} if isinstance(selection, Marked) else set()
        if unknown := sorted(named - self._backends.keys()):
            raise Unreachable(NOT_ATTACHED, where=unknown[0])
        return [b for b in self._backends.values() if selection.concerns(b.name)]

    def _part(
        self, builder: PlanBuilder, backend: Backend, selection: Selection, operation: Operation
    ) -> BackendPart | None:
        first, selected = builder.changes, builder.selected
        for drafts in self._limited(builder, selection, self._drafts(backend, selection, operation)):
            builder.add(drafts)
            if builder.selected > self._max_items:
                raise self._too_many(selection)
        if builder.selected == selected:
            return None
        changes = builder.changes - first
        abilities = backend.abilities if isinstance(backend, Requeues) else None
        if changes and abilities is not None:
            self._warn(builder, backend, abilities, operation, changes)
        guard = () if abilities is None else abilities.guard
        deletes = abilities is not None and operation.action == Action.DISCARD and deletes_items(abilities)
        return BackendPart(backend.name, backend.place, first, builder.selected - selected, changes, guard, deletes)

    def _warn(
        self, builder: PlanBuilder, backend: Backend, abilities: Abilities, operation: Operation, changes: int
    ) -> None:
        """Warn of what the action does to the backend as a whole."""
        if operation.action == Action.REQUEUE:
            builder.forecast(abilities.throughput, changes)
            if isinstance(backend, WarnsOfPlans):
                for notice in backend.plan_warnings(changes):
                    builder.warn(notice, changes)
        if operation.action == Action.DISCARD and abilities.undo_of(Action.DISCARD) is UndoKind.NONE:
            builder.warn(DELETES if deletes_items(abilities) else CANNOT_BE_UNDONE, changes)

    def _limited(
        self, builder: PlanBuilder, selection: Selection, batches: Iterator[Sequence[Draft]]
    ) -> Iterator[Sequence[Draft]]:
        limit = selection.limit if isinstance(selection, Matching) else None
        for drafts in batches:
            if self._stop.requested:
                return
            if limit is None:
                yield drafts
                continue
            left, room = limit - builder.selected, self._max_items - builder.selected
            if left <= 0:
                return
            end = _end_of_unit(drafts, left, max(left, room))
            if end == 0 and not builder.selected:  # the first unit alone is too large, and is refused
                end = len(drafts)
            yield drafts[:end]
            if end < len(drafts):
                return

    def _too_many(self, selection: Selection) -> TooMany:
        return TooMany(
            f"{self._size(selection)} items are selected, but a plan may have at most {self._max_items}",
            fix="Narrow the filter, or raise max_items in the config.",
            advice=Advice(Step.SELECT_FEWER, str(self._max_items)),
        )

    def _size(self, selection: Selection) -> str:
        unknown = f"more than {self._max_items}"
        if isinstance(selection, Marked):
            return str(marked) if (marked := len(set(selection.keys))) > self._max_items else unknown
        total, exact = 0, True
        for backend in self._meant(selection):
            asked = selection.filter.for_backend(backend.name)
            if asked is None or asked.terms_for(Field.CAUSE):
                return unknown
            try:
                counts = backend.counts(asked, self._clock.now(), None)
            except BackendFault:
                return unknown
            total += sum(count.value for count in counts.values())
            exact = exact and all(count.exact for count in counts.values())
        if selection.limit is not None and selection.limit <= total:
            total, exact = selection.limit, True
        if total <= self._max_items:  # a unit has more items than were selected, or they have changed meanwhile
            return unknown
        return str(total) if exact else f"at least {total}"

    # -- what is selected in one backend ---------------------------------------------------------

    def _drafts(self, backend: Backend, selection: Selection, operation: Operation) -> Iterator[Sequence[Draft]]:
        if backend.name in self._read_only:
            yield from self._all_skipped(backend, selection, read_only_notice(backend.name))
            return
        if not isinstance(backend, Requeues) or operation.action not in backend.abilities.actions:
            yield from self._all_skipped(backend, selection, _cannot(backend, operation))
            return
        now = backend.now()
        if isinstance(selection, Marked):
            yield from self._of_keys(backend, self._marked_in(backend, selection), operation, now)
            return
        asked = selection.filter.for_backend(backend.name)
        assert asked is not None
        found = backend.drafts(asked, selection.sort.within, operation, now, self._stop)
        causes = asked.terms_for(Field.CAUSE)
        yield from self._of_one_cause(causes, found) if causes else found

    def _of_one_cause(
        self, terms: Sequence[Term], batches: Iterator[Sequence[Draft]]
    ) -> Iterator[Sequence[Draft]]:
        """The same batches, checked for a prefix that matches two causes, maybe in different backends."""
        self._match = self._match or SignatureMatch(terms)
        for drafts in batches:
            for signature in {draft.signature for draft in drafts}:
                self._match.require_unambiguous(signature)
            yield drafts

    def _marked_in(self, backend: Backend, selection: Marked) -> list[ItemKey]:
        """The marked items of one backend, each once."""
        return list(dict.fromkeys(key for key in selection.keys if key.backend == backend.name))

    def _of_keys(
        self, backend: Requeues, keys: Sequence[ItemKey], operation: Operation, now: datetime
    ) -> Iterator[Sequence[Draft]]:
        drafts = _in_order(keys, chain.from_iterable(backend.drafts(keys, NATURAL, operation, now, self._stop)))
        yield drafts
        found = {draft.key for draft in drafts}
        if missing := [text for key in keys if (text := str(key)) not in found]:
            yield [Draft(key, "", None, "unknown", None, _NO_SUCH_ITEM) for key in missing]

    def _keys(self, backend: Backend, selection: Matching, now: datetime) -> Iterator[list[ItemKey]]:
        request = PageRequest(selection.filter, now, selection.sort, limit=_PAGE)
        while True:
            page = page_of(backend, request, self._stop)
            if page.items:
                yield [item.key for item in page.items]
            if page.next is None or self._stop.requested:
                return
            request = replace(request, after=page.next)

    def _all_skipped(self, backend: Backend, selection: Selection, reason: Notice) -> Iterator[Sequence[Draft]]:
        if isinstance(selection, Marked):
            keys = self._marked_in(backend, selection)
            yield [Draft(str(key), "", None, "unknown", None, reason) for key in keys]
            return
        for keys in self._keys(backend, selection, backend.now()):
            yield [Draft(str(key), "", None, "unknown", None, reason) for key in keys]
