"""The signature of an error text: two failures with the same signature have the same cause.

A text is read as words between separators. A word is kept, or it is variable and becomes a placeholder. Which of the
two depends only on the word itself and, for numbers and quoted names, on the word before it. This is why the templates
in `signature_of` are exact: see `_template`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import NamedTuple, cast

from console.core.excerpt import GAP, LIMIT, excerpt

NORMALISED_LIMIT = 300

# --- what is variable -------------------------------------------------------------------------------

_WORD = r"0-9A-Za-z_.:/@%+\-~\\$"
_WORD_END = r"0-9A-Za-z_/@%+\-~\\$"  # a full stop or colon at the end is punctuation, not part of the word
_QUOTES = "'\"`"

# A number after one of these words belongs to the cause ("HTTP 429"), and so does a quoted name after words such as
# column ("column "email""). Both are kept. None of these words is itself variable.
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

# Numbers, versions, dates, times, addresses and identifiers share one placeholder, because a hex identifier may happen
# to have only digits, and a number may be whole here and a fraction there. The quantifiers are possessive: these
# patterns run on every error text, and must not backtrack.
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

# Inside any other word: long identifiers, then all digits. A class name with one number in it (OAuth2Error) is not an
# identifier; a word with two runs of digits is.
_VARIABLE_PART = re.compile(
    r"(?<![0-9A-Za-z])(?:(?=[0-9]*[A-Za-z]+[0-9]+[A-Za-z]+[0-9]|[0-9]+[A-Za-z]+[0-9])[0-9A-Za-z]{8,}"
    r"|(?=[0-9]+[a-f]|[a-f]+[0-9])[0-9a-f]{8,})(?![0-9A-Za-z])|[0-9]+(?:[.:-][0-9]+)*"
)
_LIST = re.compile(r"(#|<quoted>|<path>|<email>)(?:(?:, ?| )\1)+")


def _shown_word(core: str) -> str:
    """What a word without its closing punctuation becomes in the signature."""
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
_FRAME = '\n  File "'


def _subject(text: str) -> str:
    """The line that counts: the first one or, in a Python traceback, the one that names the exception."""
    text = text.strip()
    if "\n" not in text:
        return text
    first = text[: text.index("\n")].rstrip()
    start = text.rfind(_TRACEBACK)
    if start < 0:
        return first
    gap = text.find(GAP, start)
    # Another traceback may begin in the gap: what follows its stack frames counts.
    begins = gap if gap > 0 and _FRAME in text[gap:] else start
    raised = _raised(text[begins:].splitlines()[1:])
    return raised if first.startswith(_TRACEBACK) else f"{first} | {raised.partition(':')[0].rstrip()}"


def _raised(lines: list[str]) -> str:
    """The first line after the stack frames, or the last line when the text ends before it."""
    for line in lines:
        if line and not line[0].isspace():
            return line.strip()
    return lines[-1].strip() if lines else _TRACEBACK


def normalise(text: str) -> str:
    """The line of an error that counts, with everything variable replaced."""
    return _normalised(_subject(excerpt(text)))


def _digest(normalised: str) -> str:
    return sha256(normalised.encode("utf-8", "surrogatepass")).hexdigest()[:12]


# --- learned templates, which are faster ------------------------------------------------------------

_EXACT = 4096
_PASSED_OVER = 4 * _EXACT
_TEMPLATES_PER_HEAD = 8
_FEW = 2
_HEADS = 512
_SIGHTINGS = 3
_LEARNABLE = 600

_head = cast("Callable[[str], re.Match[str]]", re.compile(r"(?:[A-Za-z,.:;()\[\]_-]++ )*+").match)
"""The plain words at the start of a text, which are never variable. May be empty."""


class _Template(NamedTuple):
    """A pattern, and the signature of every text it matches."""

    holds: Callable[[str], object]
    signature: str


def _template(subject: str, signature: str) -> _Template | None:
    """A pattern with the subject's fixed words as literals and a slot for each variable one; None when not exact.

    Exact means: every text that matches has the same tokens in the same places. Words are the longest runs of word
    characters and slots match only those, so words end at the same places. Quotes cannot pair up differently, because
    no slot matches a quote. What the word before would cause to be kept is excluded from the slot.
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
    """Excludes from the slot after this literal what would be kept there."""
    code = rf"(?!{_CODE_VALUE})" if _ends_in_code_lead(literal) else ""
    return code + (rf"(?!{_NAME_VALUE})" if _ends_in_name_lead(literal) else "")


def _disturbs_quotes(token: str, quoted: bool, following: str) -> bool:
    """Whether quotes could pair up differently: a quote inside quotes may close an earlier one, and whether a quote
    after a word opens depends on the last character of that word."""
    return any(quote in token[1:-1] for quote in _QUOTES) if quoted else following in tuple(_QUOTES)


def _quoted_slot(quoted: str) -> str:
    return rf"{quoted[0]}[^{_QUOTES}\n]*{quoted[0]}"


def _word_slot(token: re.Match[str], expected: list[str]) -> str | None:
    """A pattern whose matches all become the same placeholder as this word; None for a word that is kept.

    Where no pattern is certain, the slot matches any word, and the required result is added to `expected`.
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
    """Whether the word becomes the same with any other digits: it has a letter that no opaque word has, is not a vendor
    code, and no part of it could become an identifier."""
    if not re.search(r"[^0-9a-fA-F.:/+\-TZx]", core):
        return False
    if re.fullmatch(rf"{_VENDOR}[0-9]+|{_CODE_NAMES}:[0-9]+", core):
        return False
    parts = re.findall("[0-9A-Za-z]*[0-9][0-9A-Za-z]*", core)
    return all(re.fullmatch("[0-9]+|(?=.*[g-zA-Z])[A-Za-z]*[0-9]+[A-Za-z]*", part) for part in parts)


class _Signatures:
    """Computes signatures with a cache of whole texts and then learned templates. Memory is bounded.

    Templates are found by the plain words at the start of a text (its head). Where only a few templates start with the
    same word, that word alone is enough, which is faster.

    Threads share it: each step is one dictionary operation, and a lost update costs only time.
    """

    def __init__(self) -> None:
        self._exact: dict[str, str] = {}
        self._templates: dict[str, tuple[_Template, ...]] = {}
        self._few: dict[str, tuple[_Template, ...]] = {}
        self._sightings: dict[str, int] = {}
        self._passed_over = 0
        self._held: _Template = _Template(lambda _: False, "")
        """The template that matched last."""

    def of(self, text: str) -> str:
        signature = self._exact.get(text)
        if signature is not None:
            return signature
        text = excerpt(text)
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
        """The signatures of many texts, None where there is no text. Neighbours often fail alike, so the template that
        matched last is tried first, on the whole text: a text that matches has one line and nothing to strip."""
        signatures: list[str | None] = []
        holds, signature = self._held
        for text in texts:
            if not text:
                signatures.append(None)
            elif holds(text) and len(text) <= LIMIT:
                signatures.append(signature)
            else:
                signatures.append(self.of(text))
                holds, signature = self._held
        return signatures

    def _pass_over(self) -> None:
        """Keep a full cache for a while: where nearly all texts differ, refilling it again and again takes longer than
        matching templates."""
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
        """Whether it was seen repeatedly: compiling a template takes as long as normalising dozens of texts."""
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
