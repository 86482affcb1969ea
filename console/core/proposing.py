"""Propose: freeze what is selected into a plan, streaming, with what is blocked and why."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

from console.core.backend import Backend, Draft, Drafts, Order, PageRequest, Requeues, Said
from console.core.faults import BackendFault, NotNarrowed, TooMany, TrailUnavailable, Unreachable, UsageFault
from console.core.item import ItemKey
from console.core.listing import Listing, SignatureMatch, page_of
from console.core.packing import BLOCK_ITEMS, FIRST_BLOCKED, Block, pack
from console.core.plan import (
    PLAN_LIFETIME,
    Marked,
    Matching,
    Plan,
    PlanHash,
    Selection,
    Share,
)
from console.core.ports import Book, Clock, Stop
from console.core.query import NATURAL, Field, Term
from console.core.release import Release

_PAGE = 500
_REASONS_KEPT = 200
"""Reasons, causes and warnings are counted by text; past this many different ones they are only `others`."""


@dataclass(slots=True)
class Proposal:
    """A plan while it grows: numbered, hashed, stored and counted batch by batch."""

    book: Book | None
    plan_id: str
    max_items: int
    hash: PlanHash = field(default_factory=PlanHash)
    changes: int = 0
    refused: int = 0
    by_condition: Counter[str] = field(default_factory=Counter)
    by_signature: Counter[str] = field(default_factory=Counter)
    blocked: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)

    @property
    def selected(self) -> int:
        return self.changes + self.refused

    def add(self, drafts: Sequence[Draft]) -> None:
        for start in range(0, len(drafts), BLOCK_ITEMS):
            self._add(Drafts.of(drafts[start : start + BLOCK_ITEMS]))

    def _add(self, drafts: Drafts) -> None:
        kinds = Counter(drafts.said)
        blocks: list[Block] = []
        if any(blocked is not None for _, _, blocked, _ in kinds):
            free = [said[2] is None for said in drafts.said]
            refused = drafts.only([not one for one in free])
            drafts = drafts.only(free)
            reasons = [str(said[2]) for said in refused.said]
            first = FIRST_BLOCKED + self.refused
            blocks.append(pack(first, refused.keys, refused.units, refused.befores, reasons))
            self.refused += len(refused)
        if drafts:
            blocks.append(pack(self.changes, drafts.keys, drafts.units, drafts.befores))
            self.changes += len(drafts)
        for kind, times in kinds.items():
            self._count(kind, times)
        for block in blocks:
            self.hash.add(block)
        if self.book is not None:
            self.book.add_blocks(self.plan_id, blocks)

    def _count(self, kind: Said, times: int) -> None:
        condition, signature, blocked, warning = kind
        if blocked is not None:
            _count(self.blocked, blocked, times)
            return
        self.by_condition[condition] += times
        _count(self.by_signature, signature or "no error text", times)
        if warning is not None:
            _count(self.warnings, warning, times)

    def seal(
        self,
        order: Order,
        release: Release,
        selection: str,
        shares: Iterable[Share],
        now: datetime,
        undo_of: str | None = None,
    ) -> Plan:
        plan = Plan(
            self.plan_id,
            now,
            now + PLAN_LIFETIME,
            order,
            release,
            selection,
            tuple(shares),
            dict(self.by_condition),
            dict(self.by_signature),
            dict(self.blocked),
            dict(self.warnings),
            undo_of,
        )
        sealed = replace(plan, hash=self.hash.seal(plan))
        if self.book is not None:
            self.book.seal(sealed)
        return sealed

    def discard(self) -> None:
        """Leave nothing behind; whatever made this necessary is more important than whether it succeeds."""
        if self.book is not None:
            with suppress(TrailUnavailable):
                self.book.discard(self.plan_id)


def _count(counter: Counter[str], text: str, times: int = 1) -> None:
    counter[text if text in counter or len(counter) < _REASONS_KEPT else "others"] += times


def _in_order(keys: Sequence[ItemKey], drafts: Iterable[Draft]) -> list[Draft]:
    """As the keys were given, with the items of one unit together where its first one is."""
    position = {str(key): n for n, key in enumerate(keys)}
    of_unit: dict[str, int] = {}
    found = sorted(drafts, key=lambda draft: position.get(draft.key, len(position)))
    for draft in found:
        of_unit.setdefault(draft.unit or draft.key, position.get(draft.key, len(position)))
    return sorted(found, key=lambda draft: of_unit[draft.unit or draft.key])


def new_plan_id() -> str:
    return f"p{secrets.token_hex(5)}"


class Proposer:
    """Builds one plan from a selection over the backends."""

    def __init__(
        self, backends: Mapping[str, Backend], book: Book | None, clock: Clock, max_items: int, stop: Stop
    ) -> None:
        self._backends = backends
        self._book = book
        self._clock = clock
        self._max_items = max_items
        self._stop = stop
        self._match: SignatureMatch | None = None

    def propose(self, selection: Selection, order: Order, release: Release) -> Plan:
        self._require_narrowed(selection)
        told, selection = str(selection), self._first_of_all(selection)
        self._require_few(selection)
        proposal = Proposal(self._book, new_plan_id(), self._max_items)
        try:
            shares = [
                share
                for backend in self._meant(selection)
                if (share := self._share(proposal, backend, selection, order)) is not None
            ]
            if self._stop.requested:
                raise UsageFault("proposing was stopped", fix="Nothing was stored.")
            return proposal.seal(order, release, told, shares, self._clock.now())
        except TrailUnavailable:
            raise  # nor can it be cleaned up now; what was never sealed is purged one day
        except BaseException:
            proposal.discard()
            raise

    def _require_narrowed(self, selection: Selection) -> None:
        if isinstance(selection, Matching) and not selection.everything and not selection.filter.narrows:
            raise NotNarrowed(fix="Narrow it with a filter, or say --all if everything that needs eyes is meant.")

    def _first_of_all(self, selection: Selection) -> Selection:
        """The first so many by a column are the first of all backends together, as they are listed."""
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
        """Marked ones are read at once, so that those of one unit are read together."""
        if isinstance(selection, Marked) and len(set(selection.keys)) > self._max_items:
            raise self._too_many(selection)

    def _meant(self, selection: Selection) -> list[Backend]:
        named = {key.backend for key in selection.keys} if isinstance(selection, Marked) else set()
        if unknown := sorted(named - self._backends.keys()):
            raise Unreachable("it is not configured, or did not open", where=unknown[0])
        return [b for b in self._backends.values() if selection.concerns(b.name)]

    def _share(self, proposal: Proposal, backend: Backend, selection: Selection, order: Order) -> Share | None:
        first, selected = proposal.changes, proposal.selected
        for drafts in self._limited(proposal, selection, self._drafts(backend, selection, order)):
            proposal.add(drafts)
            if proposal.selected > self._max_items:
                raise self._too_many(selection)
        if proposal.selected == selected:
            return None
        guard = backend.abilities.guard if isinstance(backend, Requeues) else ()
        return Share(backend.name, backend.place, first, proposal.selected - selected, proposal.changes - first, guard)

    def _limited(
        self, proposal: Proposal, selection: Selection, batches: Iterator[Sequence[Draft]]
    ) -> Iterator[Sequence[Draft]]:
        limit = selection.limit if isinstance(selection, Matching) else None
        for drafts in batches:
            if self._stop.requested:
                return
            if limit is None:
                yield drafts
                continue
            left = limit - proposal.selected
            if left <= 0:
                return
            yield drafts[:left]

    def _too_many(self, selection: Selection) -> TooMany:
        return TooMany(
            f"{self._size(selection)} items are selected, at most {self._max_items} are allowed in one plan",
            fix="Narrow the filter, use --limit, or raise max_items in the config.",
        )

    def _size(self, selection: Selection) -> str:
        if isinstance(selection, Marked):
            return str(len(selection.keys))
        total, exact = 0, True
        for backend in self._meant(selection):
            asked = selection.filter.for_backend(backend.name)
            if asked is None or asked.terms_for(Field.SIGNATURE):
                return f"more than {self._max_items}"
            try:
                counts = backend.counts(asked, self._clock.now(), None)
            except BackendFault:
                return f"more than {self._max_items}"
            total += sum(count.value for count in counts.values())
            exact = exact and all(count.exact for count in counts.values())
        if selection.limit is not None and selection.limit <= total:
            return str(selection.limit)
        return str(total) if exact else f"at least {total}"

    # -- what is selected in one backend ---------------------------------------------------------

    def _drafts(self, backend: Backend, selection: Selection, order: Order) -> Iterator[Sequence[Draft]]:
        if not isinstance(backend, Requeues) or order.action not in backend.abilities.actions:
            yield from self._all_blocked(backend, selection, f"{backend.name} cannot {order.action.value} items")
            return
        now = backend.now()
        if isinstance(selection, Marked):
            keys = list(dict.fromkeys(key for key in selection.keys if key.backend == backend.name))
            yield from self._of_keys(backend, keys, order, now)
            return
        asked = selection.filter.for_backend(backend.name)
        assert asked is not None
        found = backend.drafts(asked, selection.sort, order, now, self._stop)
        causes = asked.terms_for(Field.SIGNATURE)
        yield from self._of_one_cause(causes, found) if causes else found

    def _of_one_cause(
        self, terms: Sequence[Term], batches: Iterator[Sequence[Draft]]
    ) -> Iterator[Sequence[Draft]]:
        """The same, unless a prefix fits two causes, perhaps in another backend."""
        self._match = self._match or SignatureMatch(terms)
        for drafts in batches:
            for _, signature, *_ in set(Drafts.of(drafts).said):
                self._match.require_unambiguous(signature)
            yield drafts

    def _of_keys(
        self, backend: Requeues, keys: Sequence[ItemKey], order: Order, now: datetime
    ) -> Iterator[Sequence[Draft]]:
        drafts = _in_order(keys, chain.from_iterable(backend.drafts(keys, NATURAL, order, now, self._stop)))
        yield drafts
        found = {draft.key for draft in drafts}
        if missing := [text for key in keys if (text := str(key)) not in found]:
            yield [Draft(key, "", "null", "unknown", None, "there is no such item") for key in missing]

    def _keys(self, backend: Backend, selection: Matching, now: datetime) -> Iterator[list[ItemKey]]:
        request = PageRequest(selection.filter, now, selection.sort, limit=_PAGE)
        while True:
            page = page_of(backend, request, self._stop)
            if page.items:
                yield [item.key for item in page.items]
            if page.next is None or self._stop.requested:
                return
            request = replace(request, after=page.next)

    def _all_blocked(self, backend: Backend, selection: Selection, reason: str) -> Iterator[Sequence[Draft]]:
        if isinstance(selection, Marked):
            yield [
                Draft(str(key), "", "null", "unknown", None, reason)
                for key in selection.keys
                if key.backend == backend.name
            ]
            return
        for keys in self._keys(backend, selection, backend.now()):
            yield [Draft(str(key), "", "null", "unknown", None, reason) for key in keys]
