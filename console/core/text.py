"""Text for people: untrusted text made safe to print, durations and times."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

CELL_LIMIT = 200
DETAIL_LIMIT = 200_000

# --- untrusted text ---------------------------------------------------------------------------------

_PLAIN, _MARK, _PRESENTATION, _HOSTILE = ".", "m", "v", "x"

# Characters that Unicode counts as letters or marks but that show nothing: grapheme joiner, Hangul fillers, Khmer
# inherent vowels, Mongolian selectors, and variation selectors that no emoji needs.
_FILLERS = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0)
_INVISIBLE = frozenset((*_FILLERS, *range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0)))
_EMOJI_SELECTORS = frozenset([0xFE0E, 0xFE0F])


class _Kinds(dict[int, str]):
    """Code point → kind, for `str.translate`. A bounded cache."""

    def __missing__(self, point: int) -> str:
        if len(self) >= 4096:
            self.clear()
        kind = self[point] = _kind(point)
        return kind


def _kind(point: int) -> str:
    if point in _INVISIBLE:
        return _HOSTILE
    if point in _EMOJI_SELECTORS:
        return _PRESENTATION
    category = unicodedata.category(chr(point))
    if category[0] == "M":
        return _MARK
    return _HOSTILE if category[0] == "C" or category in ("Zl", "Zp") else _PLAIN


_KINDS = _Kinds()

# Matches in the text's kinds: a hostile character, an emoji selector after no character, or combining marks after
# the fourth.
_ODD = re.compile(r"x|(?<!\.)v|(?<=mmmm)m+")


_BLANKS = frozenset("\u2800\U0001d159\ufffc\U00013441\U00013442")
"""Symbols that show nothing: an empty Braille pattern, a note without a head, the place of an object, and the blanks
of hieroglyphs."""


def is_blank(text: str) -> bool:
    """Whether there is nothing in a text that a person could see."""
    return all(char.isspace() or char in _BLANKS or _KINDS[ord(char)] != _PLAIN for char in text)


def keep_ends(text: str, limit: int) -> str:
    """Cut a text in its middle. Its end often has what tells it from others: a time, a number."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"


def neutralise(text: str, limit: int = CELL_LIMIT, multiline: bool = False) -> str:
    """Make untrusted text safe to print: cut it to `limit`, then make every control character visible.

    By default the result is one line, with ␊ and ␉ for newline and tab. With `multiline`, newlines stay.
    """
    if len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    if text.isascii() and text.isprintable():
        return text
    if not multiline:
        return _neutral_line(text)
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(map(_neutral_line, lines))


def _neutral_line(line: str) -> str:
    if line.isascii() and line.isprintable():
        return line
    kinds = line.translate(_KINDS)
    pieces: list[str] = []
    done = 0
    for odd in _ODD.finditer(kinds):
        pieces.append(line[done : odd.start()])
        pieces.append(_visible(line[odd.start()]) if odd[0] in "xv" else f"⟨+{len(odd[0])}⟩")
        done = odd.end()
    return "".join(pieces) + line[done:]


def _visible(char: str) -> str:
    point = ord(char)
    if point < 0x20:
        return chr(0x2400 + point)
    if point == 0x7F:
        return "␡"
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


_FIRST_LINE = re.compile(r"\S[^\r\n]*")


def first_line(text: str) -> str:
    """The first line that is not blank."""
    found = _FIRST_LINE.search(text)
    return found[0].rstrip() if found else ""


def telling_line(error: str) -> str:
    """The first line; of a Python traceback the line that names the exception."""
    first = first_line(error[:1000])
    if not first.startswith("Traceback (most recent call last)"):
        return first
    return next((line for line in reversed(error.splitlines()) if line and not line[0].isspace()), first)


_FORMULA = re.compile(r"""(^|;)(?=[\s"]*[=+\-@＝＋－＠])|^(?=[\t\r])""")
"""Some spreadsheets take the wide signs of Asian keyboards for the plain ones."""


def csv_cell(text: str) -> str:
    """The text, with an apostrophe wherever a spreadsheet would take what follows for a formula.

    Also after a semicolon: where that is the separator, quotes in a comma-separated line protect nothing.
    """
    return _FORMULA.sub(r"\1'", text)


def csv_text(value: str | float | datetime | None) -> str:
    """A value as a CSV cell: texts made safe, times in UTC."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case datetime():
            return instant(value)
        case str():
            return csv_cell(neutralise(value, DETAIL_LIMIT))
        case _:
            return str(value)


# --- durations and instants -------------------------------------------------------------------------

_UNITS = (
    ("w", timedelta(weeks=1)),
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
)
_DURATION = re.compile("".join(rf"(?:([0-9]+){unit}(?![a-z]))?" for unit, _ in _UNITS))
_ZERO = timedelta(0)
FAR = timedelta(days=100)
"""For times further away than this, a date is more useful than a countdown."""
_A_LONG_TIME = 1000
"""Above this many days, a time is given in years."""


def parse_duration(text: str) -> timedelta:
    """Read `5m`, `1h30m`, `2w` or `250ms`: units from large to small, each at most once."""
    found = _DURATION.fullmatch(text)
    if not text or not found:
        raise ValueError(f"{text[:40]!r} is not a duration such as 90s, 5m, 1h30m or 2d")
    try:
        return sum((int(n) * unit for n, (_, unit) in zip(found.groups(), _UNITS, strict=True) if n), _ZERO)
    except (OverflowError, ValueError):
        raise ValueError(f"{text[:40]!r} is too long") from None


def parse_moment(text: str) -> datetime:
    """Read an ISO-8601 time: in UTC, unless it has a zone."""
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:  # the last hours of year 9999 and the first of year 1 cannot be converted
        raise ValueError(f"{text[:40]!r} is not in the calendar") from None


def duration(span: timedelta) -> str:
    """Write a duration so that `parse_duration` reads the same, to the millisecond: `1h30m`, `30d`, `2w`."""
    if span < _ZERO:
        return f"-{duration(-span)}"
    weeks, rest = divmod(span, _UNITS[0][1])
    if weeks and not rest:
        return f"{weeks}w"
    pieces: list[str] = []
    for unit, size in _UNITS[1:]:
        count, span = divmod(span, size)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def countdown(span: timedelta) -> str:
    """The two largest units, for a running clock: `12s`, `4m 12s`, `2h 05m`, `3d 4h`; for very long times `7978y`."""
    if span < _ZERO:
        return f"-{countdown(-span)}"
    minutes, seconds = divmod(span // timedelta(seconds=1), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days >= _A_LONG_TIME:
        return f"{days // 365}y"
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


def ago(age: timedelta) -> str:
    """An age in its largest unit: `now`, `12s ago`, `4m ago`, `3d ago`, `8y ago`; `in 4m` for the future."""
    if abs(age).days >= _A_LONG_TIME:
        years = abs(age).days // 365
        return f"{years}y ago" if age > _ZERO else f"in {years}y"
    for unit, size in _UNITS[1:-1]:
        if count := abs(age) // size:
            return f"{count}{unit} ago" if age > _ZERO else f"in {count}{unit}"
    return "now"


def as_of(age: timedelta, refresh: timedelta) -> str:
    """How old a figure is, `as of 40s ago`; empty if it is as new as the refresh lets expect.

    In steps of ten seconds, so that a figure on screen is not repainted every second.
    """
    step = timedelta(seconds=10)
    if age <= 2 * refresh or age < step:
        return ""
    return f"as of {ago(age // step * step)}"


def coming(moment: datetime, now: datetime) -> str:
    """When something will happen: `in 4m 12s`, or the date when that is far away, `on 9999-12-31`."""
    ahead = moment - now
    return f"in {countdown(ahead)}" if ahead < FAR else f"on {moment:%Y-%m-%d}"


def span(low: timedelta, high: timedelta) -> str:
    """Two bounds in one unit where possible, `45–75 s`; else `30s–5m`; one duration when they are equal."""
    if low == high:
        return duration(low)
    for unit, size in _UNITS[1:]:
        if not low % size and not high % size:
            if high // size > 120:
                break
            return f"{low // size}–{high // size} {unit}"
    return f"{duration(low)}–{duration(high)}"


def instant(moment: datetime) -> str:
    """A time as ISO-8601 in UTC with `Z`. It must have a time zone."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:  # the last hours of year 9999 and the first of year 1 cannot be converted
        return moment.isoformat()
    return moment.isoformat().removesuffix("+00:00") + "Z"


_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def ascii_lower(text: str) -> str:
    """Lower case for A–Z only, which every database can do too."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


def and_list(words: Sequence[str]) -> str:
    """Words in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def plural(number: int, one: str, many: str = "") -> str:
    """The word for one, or for any other number: `item`, `items`."""
    return one if number == 1 else many or f"{one}s"


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like a mistyped one. Its module is loaded only when needed."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Advice for a word that is not among the known ones, as a sentence."""
    names = sorted(known)
    if close := closest(word, names):
        return f"Did you mean '{close}'?"
    return f"Known: {', '.join(names)}." if names else "None are known."
