"""Error text → signature: what makes two failures "the same".

A text is read as words between separators. A word is kept, or it is variable and becomes a placeholder;
which of the two depends on the word alone, and for numbers and quoted names on the word before it. That
locality is what makes the shortcut in `signature_of` exact: see `_template`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import NamedTuple, cast

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
# Nothing a number has taken is ever given back: slots are matched for every text there is.
_NUMERIC = r"[-+]?+[0-9]++(?:[.:/+\-T][0-9]++)*+Z?+"
_UUID = r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"
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
    return raised if first.startswith(_TRACEBACK) else f"{first} | {raised.partition(':')[0].rstrip()}"


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

_EXACT = 4096
_PASSED_OVER = 4 * _EXACT
_TEMPLATES_PER_HEAD = 8
_FEW = 2
_HEADS = 512
_SIGHTINGS = 3
_LEARNABLE = 600

_head = cast("Callable[[str], re.Match[str]]", re.compile(r"(?:[A-Za-z,.:;()\[\]_-]++ )*+").match)
"""The plain words a text begins with, none of which is variable; perhaps none."""


class _Template(NamedTuple):
    """Texts it holds for have this signature."""

    holds: Callable[[str], object]
    signature: str


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
    match = re.compile("".join(pattern)).fullmatch
    return _Template(_reading_as(match, tuple(expected)) if expected else match, signature)


def _reading_as(match: Callable[[str], re.Match[str] | None], expected: tuple[str, ...]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        found = match(text)
        return found is not None and tuple(map(_shown_word, found.groups())) == expected

    return holds


def _guard(literal: str) -> str:
    """Keeps out of the slot behind this literal what would be kept there."""
    code = rf"(?!{_CODE_VALUE})" if _ends_in_code_lead(literal) else ""
    return code + (rf"(?!{_NAME_VALUE})" if _ends_in_name_lead(literal) else "")


def _disturbs_quotes(token: str, quoted: bool, following: str) -> bool:
    """A quote within quotes may close an earlier one, and whether the quote behind a word opens depends on
    that word's last character."""
    return any(quote in token[1:-1] for quote in _QUOTES) if quoted else following in tuple(_QUOTES)


def _quoted_slot(quoted: str) -> str:
    return rf"{quoted[0]}[^{_QUOTES}\n]*{quoted[0]}"


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

    Templates are found by the plain words a text begins with, its head; where only a few begin with the same
    word, that word is enough and is found faster.

    Shared by threads: each step is one dictionary operation, and a lost update costs only time.
    """

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._templates: dict[str, tuple[_Template, ...]] = {}
        self._few: dict[str, tuple[_Template, ...]] = {}
        self._sightings: dict[str, int] = {}
        self._passed_over = 0
        self._held: _Template = _Template(lambda _: False, "")
        """The one that held last."""

    def of(self, text: str) -> str:
        signature = self._exact.get(text)
        if signature is not None:
            return signature
        text = text[:TEXT_LIMIT]
        subject = _subject(text)
        few = self._few.get(subject.partition(" ")[0])
        for template in few or self._templates.get(_head(subject)[0], ()):
            if template[0](subject):
                self._held = template
                signature = template[1]
                break
        else:
            signature = self._derived(subject)
        if len(self._exact) < _EXACT:
            self._exact[text] = signature
        else:
            self._pass_over()
        return signature

    def of_all(self, texts: Iterable[str | None]) -> list[str | None]:
        """None where there is no text. What fails together mostly fails alike, so the template that held last is
        tried first, on the whole text: what matches one has no second line and nothing to strip."""
        signatures: list[str | None] = []
        holds, signature = self._held
        for text in texts:
            if not text:
                signatures.append(None)
            elif holds(text) and len(text) <= TEXT_LIMIT:
                signatures.append(signature)
            else:
                signatures.append(self.of(text))
                holds, signature = self._held
        return signatures

    def _pass_over(self) -> None:
        """A full cache stays as it is for a while: where nearly all texts differ, filling it again and again
        takes longer than a template does."""
        self._passed_over += 1
        if self._passed_over >= _PASSED_OVER:
            self._passed_over = 0
            self._exact.clear()

    def _derived(self, subject: str) -> str:
        normalised = _normalised(subject)
        signature = _digest(normalised)
        head = _head(subject)[0]
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
        if template is None:
            return
        self._templates[head] = (*self._templates.get(head, ()), template)
        if head:
            word = head.partition(" ")[0]
            few = self._few.get(word)
            crowded = few is not None and len(few) in (0, _FEW)
            self._few[word] = () if crowded else (*(few or ()), template)


_SIGNATURES = _Signatures()
signature_of: Callable[[str], str] = _SIGNATURES.of
signatures_of: Callable[[Iterable[str | None]], list[str | None]] = _SIGNATURES.of_all
