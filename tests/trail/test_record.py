from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from console.core.plan import canonical
from console.trail.record import AT_LENGTH, GENESIS, ItemsDigest, Kind, link, moment, next_record, parsed, stamp
from console.trail.storage import MARK, original, storable, stored_text

any_text = st.text(alphabet=st.characters(codec=None), max_size=20) | st.sampled_from(["\x00", "\ud800", "\x1a", "\x1aé", "a\x1fb\n"])
bodies = st.dictionaries(any_text, st.none() | st.booleans() | st.integers() | any_text | st.lists(any_text, max_size=3), max_size=5)
moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]))


@given(st.integers(1, 2**60), st.sampled_from(Kind), moments, bodies)
def test_a_hash_is_sha256_over_the_previous_hash_and_canonical_json(seq: int, kind: Kind, at: datetime, body: dict[str, object]) -> None:
    row = next_record(GENESIS, seq, kind, at, body)
    text = canonical({"seq": seq, "kind": kind.value, "at": stamp(at), "body": body})
    assert row[5] == hashlib.sha256((GENESIS + text).encode()).hexdigest()
    assert row[3].isascii()
    record = parsed(row)
    assert (record.seq, record.kind, record.at) == (seq, kind.value, at)
    assert canonical(record.body) == canonical(body)


@given(moments)
def test_every_instant_has_one_spelling_of_one_length(at: datetime) -> None:
    assert len(stamp(at)) == AT_LENGTH
    assert moment(stamp(at)) == at
    assert stamp(moment(stamp(at))) == stamp(at)


@given(bodies, bodies)
def test_another_body_or_another_past_is_another_hash(one: dict[str, object], other: dict[str, object]) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    first, second = (next_record(GENESIS, 1, Kind.REFUSAL, at, body) for body in (one, other))
    assert (first[5] == second[5]) == (canonical(one) == canonical(other))
    assert link("f" * 64, *first[:4]) != first[5]


@given(st.lists(st.tuples(any_text, any_text), max_size=6))
def test_any_text_can_be_stored_and_comes_back(rows: list[tuple[str, str]]) -> None:
    columns = [[row[0] for row in rows], [row[1] for row in rows]]
    kept = storable(*columns)
    for text in chain.from_iterable(kept):
        text.encode()
        assert not any(ord(char) < 32 for char in text.removeprefix(MARK))
    assert list(map(tuple, original(list(zip(*kept, strict=True)), 0, 1))) == rows
    assert kept == [list(map(stored_text, column)) for column in columns]


def test_plain_columns_are_stored_as_they_are() -> None:
    plain, awkward = ["queue/a", ""], ["queue/b", "a\x00b"]
    assert storable(plain, awkward)[0] is plain
    assert storable(plain, awkward)[1][0] == "queue/b"


@given(st.lists(st.tuples(st.just(1), st.integers(), any_text, any_text, any_text), max_size=6), st.integers(0, 6))
def test_the_digest_of_items_does_not_depend_on_batches(rows: list[tuple[object, ...]], cut: int) -> None:
    whole, parts = ItemsDigest(), ItemsDigest()
    whole.add(rows)
    parts.add(rows[:cut])
    parts.add(rows[cut:])
    assert (whole.hexdigest(), whole.count) == (parts.hexdigest(), len(rows))


def test_the_digest_of_items_is_what_the_specification_says() -> None:
    digest = ItemsDigest()
    digest.add([(7, 0, "queue/a", "applied", ""), (7, 1, "queue/b", "failed", "unique")])
    assert digest.hexdigest() == hashlib.sha256(b"0\x1fqueue/a\x1fapplied\x1f\n1\x1fqueue/b\x1ffailed\x1funique\n").hexdigest()


def test_canonical_text_never_holds_a_raw_control() -> None:
    assert json.loads(canonical({"a": "\x1b\x00\ud800"})) == {"a": "\x1b\x00\ud800"}
    assert canonical({"a": "\x1b"}).isprintable()
