"""Error text → signature: what makes two failures "the same", and groups of them in bounded memory.

A text is read as words between separators. A word is kept, or it is variable and becomes a placeholder;
which of the two depends on the word alone, and for numbers and quoted names on the word before it. That
locality is what makes the shortcut in `signature_of` exact: see `_template`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Any, Protocol, TypeVar

TEXT_LIMIT = 4096
NORMALISED_LIMIT = 300

# --- what is variable -------------------------------------------------------------------------------

_WORD = r"0-9A-Za-z_.:/@%+\-~\\$"
_WORD_END = r"0-9A-Za-z_/@%+\-~\\$"  # a full stop or colon at the end is punctuation, not part of the word
_QUOTES = "'\"`"

# A number after one of these names the cause ("HTTP 429"), so does a plain name in quotes after one of
# those ("column "email""): both stay. None of these words is itself variable.
_CODE_NAMES = r"(?i:https?(?:/[0-9.]*[0-9])?|status|code|errno|error|exit|rc|sqlstate|signal)"
_CODE_LEAD = rf"{_CODE_NAMES}:?[ =\[(]{{1,2}}"
_CODE_VALUE = rf"(?:[0-9]{{1,5}}|[0-9A-Z]{{5}})(?=[.:]*(?![{_WORD}]))"
_NAME_LEAD = (
    r"(?i:relation|table|column|constraint|index|attribute|named|name|field|function|operator|type|"
    r"extension|schema|role|database|parameter|argument|option|keyerror|property):? "
)
_NAME_VALUE = r"(?:'[A-Za-z_.]+'|\"[A-Za-z_.]+\"|`[A-Za-z_.]+`)"
_QUOTED = r"(?<![0-9A-Za-z_])(?:'[^']*'|\"[^\"]*\"|`[^`]*`)"
_LEADS = rf"(?=[A-Za-z]+(?:/[0-9.]+)?:?[ =\[(]{{1,2}}[0-9A-Z{_QUOTES}])"  # rules most words out, cheaply
_TOKEN = re.compile(
    rf"(?P<quoted>{_QUOTED})"
    rf"|(?P<kept>{_LEADS}(?:{_CODE_LEAD}{_CODE_VALUE}|{_NAME_LEAD}{_NAME_VALUE}))"
    rf"|(?P<word>[{_WORD}]+)"
)
_ends_in_code_lead = re.compile(rf"(?<![{_WORD}]){_CODE_LEAD}\Z").search
_ends_in_name_lead = re.compile(rf"(?<![{_WORD}]){_NAME_LEAD}\Z").search

# Numbers, versions, dates, times, addresses, identifiers: one placeholder for all of them, because an
# identifier in hex may happen to have only digits, and a whole number is a fraction elsewhere.
_NUMERIC = r"(?>[-+]?[0-9]+(?:[.:/+\-T][0-9]+)*Z?)"
_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_HEX = r"(?:(?=[a-f]*[0-9])[0-9a-f]{8,}|(?=[A-F]*[0-9])[0-9A-F]{8,}|0x[0-9A-Fa-f]+)"
_IPV6 = r"(?=[a-fA-F:]*[0-9])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?<=[0-9a-fA-F])"
_OPAQUE = (_NUMERIC, _UUID, _HEX, _IPV6)
_EMAIL = r"[0-9A-Za-z_.+%-]+@[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)+"
_PATH = rf"(?:~|\.{{1,2}}|[A-Za-z]:)?[/\\][{_WORD}]*[{_WORD_END}]"
_VENDOR = r"(?:ORA|DPY|DPI|TNS|PLS|PGRST|SQL|ERR|MY|HTTP|EC|WSA|E|TS)[-_]?"
_VENDOR_CODE = rf"{_VENDOR}[0-9]{{2,5}}|{_CODE_NAMES}(?::[0-9]{{1,5}})?"
_is_inert = re.compile(r"[A-Za-z_.:%+\-$]*").fullmatch
_is_opaque = re.compile("|".join(_OPAQUE)).fullmatch
_is_vendor_code = re.compile(_VENDOR_CODE).fullmatch
_is_email = re.compile(_EMAIL).fullmatch
_is_path = re.compile(_PATH).fullmatch

# Inside a word that is none of these: long identifiers, then any digits. A class name with one number
# in it (OAuth2Error) is no identifier; two runs of digits are.
_VARIABLE_PART = re.compile(
    r"(?<![0-9A-Za-z])(?:(?=[0-9]*[A-Za-z]+[0-9]+[A-Za-z]+[0-9]|[0-9]+[A-Za-z]+[0-9])[0-9A-Za-z]{8,}"
    r"|(?=[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{8,})(?![0-9A-Za-z])|[0-9]+(?:[.:-][0-9]+)*"
)
_LIST = re.compile(r"(#|<quoted>|<path>|<email>)(?:(?:, ?| )\1)+")


def _shown_word(core: str) -> str:
    """A word without its closing punctuation, as it counts for the signature."""
    if _is_inert(core) or _is_vendor_code(core):
        return core
    if _is_opaque(core):
        return "#"
    if _is_path(core):
        return "<path>"
    if "@" in core and _is_email(core):
        return "<email>"
    return _VARIABLE_PART.sub("#", core)


def _shown_token(token: re.Match[str]) -> str:
    if token.lastgroup == "word":
        word = token[0]
        core = word.rstrip(".:")
        return _shown_word(core) + word[len(core) :]
    return token[0] if token.lastgroup == "kept" else "<quoted>"


def _normalised(subject: str) -> str:
    skeleton = " ".join(_TOKEN.sub(_shown_token, subject).split())
    return _LIST.sub(r"\1", skeleton)[:NORMALISED_LIMIT]


# --- which line counts ------------------------------------------------------------------------------

_TRACEBACK = "Traceback (most recent call last)"


def _subject(text: str) -> str:
    """The first line; of a Python traceback the line naming the exception it ended with."""
    text = text.strip()
    if "\n" not in text:
        return text
    first = text[: text.index("\n")].rstrip()
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return first
    raised = _raised(text[start:].splitlines()[1:])
    return raised if first.startswith(_TRACEBACK) else f"{first} | {raised.partition(':')[0]}"


def _raised(lines: list[str]) -> str:
    """The first line after the frames; the last one when the text ends within them."""
    for line in lines:
        if line and not line[0].isspace():
            return line.strip()
    return lines[-1].strip() if lines else _TRACEBACK


def normalise(text: str) -> str:
    """The template of an error: its telling line with everything variable replaced."""
    return _normalised(_subject(text[:TEXT_LIMIT]))


_normalise_plain = normalise  # the oracle for the shortcut below


def _digest(normalised: str) -> str:
    return sha256(normalised.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# --- the shortcut: learned templates ----------------------------------------------------------------

_TEMPLATES_PER_HEAD = 8
_HEADS = 512
_SIGHTINGS = 3
_LEARNABLE = 600

_head = re.compile(r"(?:[A-Za-z,.:;()\[\]_-]++ )*+").match


@dataclass(frozen=True, slots=True)
class _Template:
    """Texts that match, and whose captured words read as expected, have this signature."""

    match: Callable[[str], re.Match[str] | None]
    expected: tuple[str, ...]
    signature: str

    def holds(self, subject: str) -> bool:
        found = self.match(subject)
        if found is None:
            return False
        return not self.expected or tuple(map(_shown_word, found.groups())) == self.expected


def _template(subject: str, signature: str) -> _Template | None:
    """The subject's own words as literals, a slot for each variable one; None when that would not be exact.

    Exact means: whatever matches has the same tokens in the same places. Words are the longest runs of
    word characters, and slots take only those, so words end where they end here. Quotes cannot pair up
    differently, as no slot lets one in. What a word before would keep is kept out of the slot.
    """
    pattern: list[str] = []
    expected: list[str] = []
    done = 0
    for token in _TOKEN.finditer(subject):
        quoted = token.lastgroup == "quoted"
        slot = _quoted_slot(token[0]) if quoted else _word_slot(token, expected)
        if slot is None:
            continue
        literal = subject[done : token.start()]
        pattern += (re.escape(literal), _guard(literal), slot)
        done = token.end() if quoted else token.start() + len(token[0].rstrip(".:"))
        if _disturbs_quotes(token[0], quoted, subject[done : done + 1]):
            return None
    pattern.append(re.escape(subject[done:]))
    return _Template(re.compile("".join(pattern)).fullmatch, tuple(expected), signature)


def _guard(literal: str) -> str:
    """Keeps out of the slot behind this literal what would be kept there."""
    code = rf"(?!{_CODE_VALUE})" if _ends_in_code_lead(literal) else ""
    return code + (rf"(?!{_NAME_VALUE})" if _ends_in_name_lead(literal) else "")


def _disturbs_quotes(token: str, quoted: bool, following: str) -> bool:
    """A quote within quotes may close an earlier one, and whether the quote behind a word opens depends on
    that word's last character."""
    return any(quote in token[1:-1] for quote in _QUOTES) if quoted else following in tuple(_QUOTES)


def _quoted_slot(quoted: str) -> str:
    return rf"{quoted[0]}[^{_QUOTES}]*{quoted[0]}"


def _word_slot(token: re.Match[str], expected: list[str]) -> str | None:
    """A pattern of which every match reads as this word does; None for a word that is kept.

    Where no pattern is sure, any word is taken, and what it has to read as is added to `expected`.
    """
    core = token[0].rstrip(".:")
    shown = core if token.lastgroup == "kept" else _shown_word(core)
    if shown == core:
        return None
    for kind in (*_OPAQUE, _EMAIL, _PATH):
        if re.fullmatch(kind, core):
            return kind
    if _only_digits_vary(core):
        return re.sub("[0-9]+", "[0-9]+", re.escape(core))
    expected.append(shown)
    return rf"([{_WORD}]*[{_WORD_END}])"


def _only_digits_vary(core: str) -> bool:
    """Whether the word reads the same with any other digits: it has a letter no opaque word has, is no
    vendor code with however many digits, and no part of it could become an identifier."""
    if not re.search(r"[^0-9a-fA-F.:/+\-TZx]", core):
        return False
    if re.fullmatch(rf"{_VENDOR}[0-9]+|{_CODE_NAMES}:[0-9]+", core):
        return False
    parts = re.findall("[0-9A-Za-z]*[0-9][0-9A-Za-z]*", core)
    return all(re.fullmatch("[0-9]+|(?=.*[g-zA-Z])[A-Za-z]*[0-9]+[A-Za-z]*", part) for part in parts)


class _Signatures:
    """Text → signature with an exact-text cache in front of learned templates, all bounded.

    Shared by threads: each step is one dictionary operation, and a lost update costs only time.
    """

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._templates: dict[str, tuple[_Template, ...]] = {}
        self._sightings: dict[str, int] = {}

    def of(self, text: str) -> str:
        signature = self._exact.get(text)
        if signature is None:
            text = text[:TEXT_LIMIT]
            signature = self._derived(_subject(text))
            if len(self._exact) >= 4096:
                self._exact.clear()
            self._exact[text] = signature
        return signature

    def _derived(self, subject: str) -> str:
        found = _head(subject)
        head = found[0] if found else ""
        for template in self._templates.get(head, ()):
            if template.holds(subject):
                return template.signature
        normalised = _normalised(subject)
        signature = _digest(normalised)
        if len(subject) <= _LEARNABLE and self._worth_learning(head, normalised):
            self._learn(head, subject, signature)
        return signature

    def _worth_learning(self, head: str, normalised: str) -> bool:
        """Compiling a template costs as much as dozens of texts, so only for one seen repeatedly."""
        known = self._templates.get(head)
        if (known is None and len(self._templates) >= _HEADS) or len(known or ()) >= _TEMPLATES_PER_HEAD:
            return False
        if len(self._sightings) >= 4096:
            self._sightings.clear()
        seen = self._sightings.get(normalised, 0) + 1
        self._sightings[normalised] = seen
        return seen % _SIGHTINGS == 0

    def _learn(self, head: str, subject: str, signature: str) -> None:
        template = _template(subject, signature)
        if template is not None:
            self._templates[head] = (*self._templates.get(head, ()), template)


signature_of: Callable[[str], str] = _Signatures().of


# --- groups -----------------------------------------------------------------------------------------

_CHUNK = 20_000
_GROUPS = 20_000
_SAMPLE = 1000


class Ordered(Protocol):
    """A time as a backend stores it: comparable with its own kind."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __gt__(self, other: Any, /) -> bool: ...
    def __ge__(self, other: Any, /) -> bool: ...


T = TypeVar("T", bound=Ordered)
_Instant = Callable[[Any], datetime | None]


@dataclass(frozen=True, slots=True)
class Group:
    """Failures of one cause. `signature` is None for rows without error text."""

    signature: str | None
    sample: str
    count: int
    recent: int
    """How many of them at or after the cutoff."""
    first: datetime | None
    last: datetime | None
    backends: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Cutoff:
    """An instant among raw times: those up to `old` are before it, those from `recent` on are not."""

    at: datetime
    old: Any = None
    recent: Any = None

    def count(self, times: list[Any], low: Any, high: Any, instant: _Instant) -> int:
        """How many are at or after the cutoff, when `low` of them is before it and `high` is not."""
        old = low if self.old is None else max(self.old, low)
        recent = high if self.recent is None else min(self.recent, high)
        found = 0
        for at in times:
            if at >= recent:
                found += 1
            elif at > old and (moment := instant(at)) is not None:
                if moment >= self.at:
                    recent = at
                    found += 1
                else:
                    old = at
        self.old, self.recent = old, recent
        return found


@dataclass(slots=True)
class _Tally:
    """One signature in one backend."""

    count: int = 0
    recent: int = 0
    first: datetime | None = None
    last: datetime | None = None

    def take(self, times: list[Any], instant: _Instant, cutoff: _Cutoff | None) -> None:
        self.count += len(times)
        try:
            low, high = min(times), max(times)
        except TypeError:  # there is a None among them: rare, and cheaper found out than looked for
            low = high = None
        first = None if low is None else instant(low)
        last = None if high is None else instant(high)
        if first is None or last is None:
            readable = [at for at in times if at is not None and instant(at) is not None]
            if readable:
                self.count -= len(readable)
                self.take(readable, instant, cutoff)
            return
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)
        if cutoff is not None and last >= cutoff.at:
            self.recent += len(times) if first >= cutoff.at else cutoff.count(times, low, high, instant)


@dataclass(slots=True)
class _Cause:
    sample: str
    tallies: dict[str, _Tally] = field(default_factory=dict)


class Grouping:
    """Rows (error text, time) of several backends, counted by signature while they stream by.

    Memory is bounded by one chunk of texts and by the number of groups: rows of further causes are only
    counted, in `beyond`. Times are compared raw, within a backend, and only a few of them are read.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.beyond = 0
        self._causes: dict[str | None, _Cause] = {}
        self._cutoffs: dict[str, _Cutoff] = {}

    def add(
        self,
        rows: Iterable[tuple[str | None, T | None]],
        backend: str,
        cutoff: datetime | None = None,
        *,
        instant: Callable[[T], datetime | None],
    ) -> None:
        """Count more rows of a backend. `instant` reads its times, and must agree with their raw order."""
        bound = self._cutoff(backend, cutoff)
        stream = iter(rows)
        while chunk := _times_by_text(islice(stream, _CHUNK)):
            samples: dict[str | None, str | None] = {}
            by_signature: defaultdict[str | None, list[T | None]] = defaultdict(list)
            for text, times in chunk.items():
                signature = signature_of(text) if text else None
                by_signature[signature] += times
                samples.setdefault(signature, text)
            for signature, times in by_signature.items():
                self._tally(signature, samples[signature], backend, len(times)).take(times, instant, bound)

    def _cutoff(self, backend: str, at: datetime | None) -> _Cutoff | None:
        if at is None:
            return None
        known = self._cutoffs.get(backend)
        if known is None or known.at != at:
            known = self._cutoffs[backend] = _Cutoff(at)
        return known

    def _tally(self, signature: str | None, text: str | None, backend: str, rows: int) -> _Tally:
        self.rows += rows
        cause = self._causes.get(signature)
        if cause is None:
            if len(self._causes) >= _GROUPS:
                self.beyond += rows
                return _Tally()
            cause = self._causes[signature] = _Cause((text or "")[:_SAMPLE])
        return cause.tallies.setdefault(backend, _Tally())

    def groups(self) -> list[Group]:
        """The groups so far, the largest first."""
        found = [_group(signature, cause) for signature, cause in self._causes.items()]
        return sorted(found, key=lambda group: (-group.count, group.signature or ""))


def _times_by_text(rows: Iterable[tuple[str | None, T | None]]) -> dict[str | None, list[T | None]]:
    """The inner loop over every failure there is: one lookup and one append a row."""
    times: defaultdict[str | None, list[T | None]] = defaultdict(list)
    for text, at in rows:
        times[text].append(at)
    return times


def _group(signature: str | None, cause: _Cause) -> Group:
    tallies = cause.tallies.values()
    return Group(
        signature,
        cause.sample,
        count=sum(tally.count for tally in tallies),
        recent=sum(tally.recent for tally in tallies),
        first=min((tally.first for tally in tallies if tally.first), default=None),
        last=max((tally.last for tally in tallies if tally.last), default=None),
        backends=tuple((name, tally.count) for name, tally in cause.tallies.items()),
    )
