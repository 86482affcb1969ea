from __future__ import annotations

import re
import string
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.core import cause_count as cause_count_module
from console.core import signature as module
from console.core.cause_count import CauseCounter
from console.core.excerpt import excerpt
from console.core.signature import _digest, _Signatures, normalise, signature_of
from tests.depth import examples

SAME = [
    [
        "TimeoutError: request 3f2b8a9e-1c4d-4e5f-8a9b-0c1d2e3f4a5b timed out after 30.002 seconds",
        "TimeoutError: request 00000000-1111-2222-3333-444444444444 timed out after 5 seconds",
    ],
    [
        "connect to 10.1.2.3:5432 failed at 2026-11-01T12:00:00Z",
        "connect to 192.168.0.77:6000 failed at 2026-11-01T12:00:00.123+02:00",
        "connect to fe80::1ff:fe23:4567:890a failed at 2026-11-01 12:00:00",
    ],
    ["user 'alice smith' not found", "user 'bob' not found"],
    ["no such file: /srv/in/a.csv", "no such file: ~/b/c/d.csv", "no such file: C:\\in\\x"],
    ["mail to bob@example.com bounced", "mail to a.b+c@mail.example.org bounced"],
    [
        "GET https://api.example.com/v1/orders/17?page=2",
        "GET https://api.example.com/v1/orders/99812?page=31",
    ],
    ["ids [1, 2, 3] missing", "ids [17] missing"],
    ["object 7f3a9c0de1b2 gone", "object 123456789012 gone", "object 0x7f3a gone"],
    ["task-12 failed\n  at line 3", "task-988 failed\n  at line 4"],
    ["ticket req_8f3KdL2xQ9 lost", "ticket req_7a1BcD9eF2 lost"],
    ["  HTTP 429   slow down ", "HTTP 429 slow down"],
    [
        'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: bad row 3\nmore',
        'Traceback (most recent call last):\n  File "b.py", line 9, in h\n    i()\nValueError: bad row 71',
    ],
]
DIFFERENT = [
    ["HTTP 429", "HTTP 500", "HTTP/1.1 429", "HTTP/1.1 500"],
    ["answered with status=503", "answered with status=404", "answered with status: 404", "status:404"],
    ["exit code 137", "exit code 1", "exit code 2"],
    ["[Errno 13] denied", "[Errno 2] denied"],
    ["SQLSTATE 23505", "SQLSTATE 40P01", "SQLSTATE[23505]"],
    ["ORA-00942: no table", "ORA-01017: no table"],
    ["E11000 duplicate key", "E11600 duplicate key"],
    ["ERR_VALIDATION: bad", "ERR_TIMEOUT: bad"],
    ['null value in column "email"', 'null value in column "name"'],
    ["KeyError: 'customer'", "KeyError: 'order'"],
    ["ValueError: bad", "TypeError: bad"],
    ["OAuth2Error", "S3UploadFailedError"],
    [
        "task failed\nTraceback (most recent call last):\n  f()\nValueError: x",
        "task failed\nTraceback (most recent call last):\n  f()\nKeyError: x",
        "task failed",
    ],
]


@pytest.mark.parametrize("texts", SAME)
def test_same_cause_same_signature(texts: list[str]) -> None:
    assert len({signature_of(text) for text in texts}) == 1, [normalise(text) for text in texts]


@pytest.mark.parametrize("texts", DIFFERENT)
def test_different_cause_different_signature(texts: list[str]) -> None:
    assert len({signature_of(text) for text in texts}) == len(texts), [normalise(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("", ""),
        ("can't reach host 7: don't retry", "can't reach host #: don't retry"),
        ("took 30ms of 5MB (12%)", "took #ms of #MB (#%)"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("Traceback (most recent call last):\n  f(1)\n  g(2)", "g(#)"),
        ("std::bad_alloc and/or n/a", "std::bad_alloc and/or n/a"),
        ("HTTP 4290000 is no status", "HTTP # is no status"),
        ('table "tmp_17" is gone', "table <quoted> is gone"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_templates(text: str, template: str) -> None:
    assert normalise(text) == template


FRAMES = "".join(f'  File "app.py", line {n}, in f{n}\n    call_{n}()\n' for n in range(200))
LONG = f"Traceback (most recent call last):\n{FRAMES}"
CHAINED = "KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(("text", "template"), [
    (f"{LONG}ValueError: bad row 3", "ValueError: bad row #"),
    (f"{LONG}ValueError: bad row 3\nand a note", "ValueError: bad row #"),
    (f"Traceback (most recent call last):\n  f()\n{CHAINED}{LONG}OSError: no route", "OSError: no route"),
    (f"{LONG}{CHAINED}Traceback (most recent call last):\n  f()\nOSError: no route", "OSError: no route"),
    (f"Traceback (most recent call last):\n  f()\nValueError: {'x ' * 5000}\nmore", f"ValueError: {'x ' * 144}"),
    ("first line\n" + "b" * 9000, "first line"),
], ids=["usual", "note", "second-cut", "second-short", "long-message", "no-traceback"])
def test_the_exception_of_a_traceback_of_any_length_counts(text: str, template: str) -> None:
    assert normalise(text) == template
    assert excerpt(excerpt(text)) == excerpt(text)
    assert signature_of(excerpt(text)) == signature_of(text)


def test_a_signature_is_twelve_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{12}", signature_of("x"))
    assert signature_of("lone \ud800") == signature_of("lone \ud800")


# --- the shortcut agrees with the plain way -----------------------------------------------------------

PREFIXES = ["task-", "u", "v", "E", "ORA-", "HTTP/", "HTTP/1.", "code:", "a", "T", "https://h/", "d-"]
digits = st.text(string.digits, min_size=1, max_size=9)
variable = st.one_of(
    digits,
    st.integers(1, 600).map(str),
    st.uuids().map(str),
    st.text("0123456789abcdef", min_size=6, max_size=12),
    st.datetimes().map(lambda at: at.isoformat()),
    st.ip_addresses().map(str),
    st.text("abcxyz_. '\"`", max_size=6).map(lambda inner: f"'{inner}'"),
    st.text("abcxyz_.1", max_size=6).map(lambda inner: f'"{inner}"'),
    st.text("ab1./-", max_size=8).map(lambda rest: f"/{rest}"),
    st.tuples(st.sampled_from(PREFIXES), digits).map("".join),
    st.tuples(digits, st.sampled_from(["ms", "%", "@example.com", "'", "abc", ".", ":", "-5", ".5"])).map(
        "".join
    ),
    st.text("0123456789abcgzAZ", min_size=6, max_size=12),
    st.text(string.digits + "abfTZxz.:/-+@_'\"", max_size=10),
)
WORDS = [
    "failed",
    "with",
    "HTTP",
    "HTTP/1.1",
    "status",
    "code:",
    "errno",
    "sqlstate",
    "exit",
    "column",
    "table",
]
WORDS += [
    "KeyError:",
    "don't",
    "for",
    "(",
    ")",
    "[",
    "]",
    "=",
    ",",
    ";",
    ":",
    ".",
    "ünï",
    "'open",
    '"x',
    "Error",
]


@st.composite
def families(draw: st.DrawFn) -> list[str]:
    """Several texts that share their constant words and differ in the variable ones."""
    shape = draw(st.lists(st.one_of(st.sampled_from(WORDS), st.none()), min_size=1, max_size=7))
    gaps = draw(
        st.lists(st.sampled_from([" ", " ", " ", "", "  "]), min_size=len(shape), max_size=len(shape))
    )
    kinds = [draw(st.sampled_from([variable, variable, digits])) for _ in shape]
    return [
        "".join(
            (word if word is not None else draw(kind)) + gap
            for word, kind, gap in zip(shape, kinds, gaps, strict=True)
        )
        for _ in range(draw(st.integers(4, 10)))
    ]


CAUSES: list[tuple[str, st.SearchStrategy[str]]] = [
    ("TimeoutError: request {} timed out", st.uuids().map(str)),
    ("connect to {} failed", st.ip_addresses(v=4).map(str)),
    ("lock held since {}", st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1)).map(lambda at: at.isoformat())),
    ("row {} is malformed", st.integers(0, 10**12).map(str)),
    ("mail to {}@example.com bounced", st.text(string.ascii_lowercase, min_size=1, max_size=8)),
    ("no such file: {}", st.text(string.ascii_lowercase + "/", min_size=1, max_size=12).map(lambda rest: f"/srv/{rest.strip('/')}x")),
    ("ERR_QUOTA: customer {} is over its limit", st.integers(0, 10**9).map(str)),
    ("HTTP 503 from upstream after {} ms", st.integers(0, 10**6).map(str)),
    ("HTTP 404 from upstream after {} ms", st.integers(0, 10**6).map(str)),
]


@given(st.data())
def test_a_cause_has_one_signature_whatever_it_happened_to(data: st.DataObject) -> None:
    """Drawn in any order, so that what was learned of one text does not change what is said of another."""
    drawn = data.draw(st.lists(st.sampled_from(range(len(CAUSES))), min_size=2, max_size=12))
    found: dict[int, set[str]] = {}
    for number in drawn:
        template, variable = CAUSES[number]
        found.setdefault(number, set()).add(signature_of(template.format(data.draw(variable))))
    assert all(len(signatures) == 1 for signatures in found.values()), found
    assert len(set().union(*found.values())) == len(found), found


@settings(max_examples=examples(400), deadline=None)
@given(families())
def test_learned_templates_are_exact(texts: list[str]) -> None:
    fast = _Signatures()
    for text in texts * 2:
        fast._exact.clear()
        assert fast.of(text) == _digest(normalise(text)), normalise(text)


@settings(max_examples=examples(400), deadline=None)
@given(families(), st.lists(st.one_of(st.none(), st.text(max_size=12)), max_size=4))
def test_many_at_once_have_the_signatures_each_has_alone(texts: list[str], others: list[str | None]) -> None:
    fast = _Signatures()
    asked = [*texts, *texts, *others, *texts, *(f" {text} " for text in texts), *(f"{text}\nb" for text in texts)]
    expected = [_digest(normalise(text)) if text else None for text in asked]
    assert fast.of_all(asked) == expected
    assert fast.of_all(reversed(asked)) == expected[::-1]


@pytest.mark.parametrize("around", ["{}", "{}\nsecond line", " {}", "{} ", "{}" + " x" * 3000])
def test_a_text_is_taken_whole_only_if_it_is_its_own_subject(around: str) -> None:
    fast = _Signatures()
    asked = [around.format(f"user '{n}' timed out after {n} s") for n in range(1000, 1010)]
    asked += [f"user '{n}\n{n}' timed out after {n} s" for n in range(10)] + ["x" * n for n in (4096, 4097)]
    assert fast.of_all(asked) == [_digest(normalise(text)) for text in asked]


@settings(max_examples=examples(400), deadline=None)
@given(families())
def test_a_template_learned_from_any_text_is_exact_for_all_others(texts: list[str]) -> None:
    subjects = [module._subject(text) for text in texts]
    for learned in subjects:
        template = module._template(learned, _digest(module._normalised(learned)))
        if template is None:
            continue
        assert template.holds(learned)
        for other in subjects:
            if template.holds(other):
                assert template.signature == _digest(module._normalised(other)), (learned, other)


@given(st.lists(st.text(max_size=40), max_size=8))
def test_arbitrary_texts_agree(texts: list[str]) -> None:
    fast = _Signatures()
    assert [fast.of(text) for text in texts * 4] == [_digest(normalise(text)) for text in texts * 4]


REALISTIC: list[Callable[[int], str]] = [
    lambda n: f"HTTP 429 Too Many Requests for key {n * 7919:016x}, retry after {n} s",
    lambda n: f"connection to server at 10.0.{n % 256}.3, port {n} failed: timeout expired",
    lambda n: f"user 'u{n}' has no field \"f{n}\" in batch {n}",
    lambda n: f"upstream https://api.example.com/v1/orders/{n} answered status 503 for bob{n}@example.com",
]


@pytest.mark.parametrize("text", REALISTIC)
def test_what_repeats_is_learned(text: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _Signatures()
    expected = [fast.of(text(n)) for n in range(1000, 1010)]
    monkeypatch.setattr(module, "_normalised", lambda subject: pytest.fail("not learned"))
    assert [fast.of(text(n)) for n in range(2000, 2010)] == expected


def test_many_causes_that_begin_alike_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = _Signatures()
    causes = [f"task {name} of worker {{0}} {end}" for name in ("sum", "mean", "all") for end in ("died", "left")]
    learned = [[fast.of(name.format(n)) for name in causes] for n in range(1000, 1010)][-1]
    assert len(set(learned)) == len(causes)
    monkeypatch.setattr(module, "_normalised", lambda subject: pytest.fail("not learned"))
    assert [fast.of(name.format(2000)) for name in causes] == learned


def test_a_full_cache_makes_room_again() -> None:
    fast = _Signatures()
    for n in range(4096):
        fast.of(f"task {n} died")
    fast.of("the same again")
    assert "the same again" not in fast._exact
    for n in range(4096, 4096 * 5):
        fast.of(f"task {n} died")
    fast.of("the same again")
    assert "the same again" in fast._exact


def test_memory_is_bounded() -> None:
    fast = _Signatures()
    for letter in string.ascii_letters:
        for n in range(20):
            fast.of(f"head {n * 37} {letter * 3}")
    for head in range(550):
        for n in range(3):
            fast.of(f"{'x' * head} {n}")
    for n in range(9000):
        fast.of(f"{'abcdefghij'[n % 10] * (n // 10)} word {n}")
    assert len(fast._exact) <= 4096
    assert len(fast._sightings) <= 4096
    assert len(fast._templates) <= 512
    assert max(map(len, fast._templates.values())) == 8


def test_a_long_text_is_not_learned() -> None:
    fast = _Signatures()
    for n in range(10):
        fast.of(f"{'word ' * 200}{n}")
    assert not fast._templates


def test_it_stands_alone() -> None:
    code = "import sys, console.core.signature; sys.exit('console.core.item' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- groups -------------------------------------------------------------------------------------------

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


def test_groups_span_backends_with_times_of_their_own() -> None:
    counter = CauseCounter()
    counter.add(
        [
            ("row 1 bad", at(0).isoformat()),
            ("row 2 bad", at(9).isoformat()),
            (None, None),
            ("", at(1).isoformat()),
        ],
        "queue",
        at(5),
        instant=datetime.fromisoformat,
    )
    counter.add([("row 3 bad", 30.0), ("row 4 bad", None)], "files", at(5), instant=lambda raw: at(int(raw)))
    counter.add([("row 5 bad", at(-3).isoformat())], "queue", instant=datetime.fromisoformat)
    bad, none = counter.causes()
    assert (bad.signature, bad.sample) == (signature_of("row 9 bad"), "row 1 bad")
    assert (bad.count, bad.recent, bad.first, bad.last) == (5, 2, at(-3), at(30))
    assert bad.backends == (("queue", 3), ("files", 2))
    assert (none.signature, none.sample, none.count, none.recent) == (None, "", 2, 0)
    assert (none.first, none.last) == (at(1), at(1))
    assert counter.rows == 7


def test_times_that_cannot_be_read_are_left_out() -> None:
    counter = CauseCounter()
    read = {"3": at(3), "7": at(7)}.get
    counter.add(
        [("a", "garbage"), ("a", "3"), ("a", "7"), ("b", "garbage"), ("a", None)], "queue", NOON, instant=read
    )
    a, b = counter.causes()
    assert (a.first, a.last, a.count, a.recent) == (at(3), at(7), 4, 2)
    assert (b.first, b.last, b.count, b.recent) == (None, None, 1, 0)


def test_few_times_are_read() -> None:
    read: list[int] = []

    def instant(raw: int) -> datetime:
        read.append(raw)
        return at(raw)

    counter = CauseCounter()
    counter.add((("a", n * 7919 % 10_007) for n in range(10_007)), "queue", at(5000), instant=instant)
    assert counter.causes()[0].recent == 10_007 - 5000
    assert len(read) < 100


rows = st.lists(
    st.tuples(
        st.sampled_from([None, "", "row 1 bad", "row 2 bad", "gone", "HTTP 500"]),
        st.one_of(st.none(), st.integers(-50, 50).map(at)),
    ),
    max_size=40,
)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), rows), max_size=4), st.integers(1, 7))
def test_groups_equal_a_plain_count(
    adds: list[tuple[str, list[tuple[str | None, datetime | None]]]], chunk: int
) -> None:
    counter = CauseCounter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cause_count_module, "_CHUNK", chunk)
        for backend, some in adds:
            counter.add(iter(some), backend, NOON, instant=lambda raw: raw)
    every = [(backend, text, when) for backend, some in adds for text, when in some]
    for cause in counter.causes():
        mine = [(b, at) for b, text, at in every if (signature_of(text) if text else None) == cause.signature]
        times = [when for _, when in mine if when is not None]
        assert cause.count == len(mine)
        assert cause.recent == sum(when >= NOON for when in times)
        assert (cause.first, cause.last) == (min(times, default=None), max(times, default=None))
        assert all(count == sum(b == backend for b, _ in mine) for backend, count in cause.backends)
    assert sum(cause.count for cause in counter.causes()) == len(every) == counter.rows
