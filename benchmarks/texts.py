"""Signatures of error texts, against five substitutions and a hash, with identical results where it matters."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator

from benchmarks.measure import Result, compare
from console.core.signature import signature_of

_STEPS = [
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d+\.\d+\.\d+\.\d+\b"), "<ip>"),
    (re.compile(r"0x[0-9a-f]+"), "<address>"),
    (re.compile(r"'[^']*'"), "<text>"),
    (re.compile(r"\d+"), "<n>"),
]
_SHAPES = (
    "connection to 10.{a}.{b}.{c} timed out after {n} ms (attempt {a})",
    "task 5f0c{n:04x}-0000-4000-8000-0000{c:08x} failed: deadlock detected, process {n} waits",
    "rate limit exceeded, retry after {n} s for account {b}{c}",
    "KeyError: 'position_{n}' at 0x7f{a:02x}{b:02x}{c:02x}",
    "upstream answered 503 to request {n}{a}{b}",
)


def cases(quick: bool) -> Iterator[Result]:
    texts = list(_texts(20_000 if quick else 100_000))
    yield compare("signatures, nearly all texts different", 1 / 3, lambda: [signature_of(text) for text in texts],
                  lambda: [_raw(text) for text in texts], turns=5, note="against five re.sub and a hash")
    repeated = [texts[n % 500] for n in range(len(texts))]
    yield compare("signatures, texts repeat", 1 / 20, lambda: [signature_of(text) for text in repeated],
                  lambda: [_raw(text) for text in repeated], turns=5, note="against five re.sub and a hash")


def _texts(count: int) -> Iterator[str]:
    chance = random.Random(count)
    for n in range(count):
        yield _SHAPES[n % 5].format(n=chance.randrange(65_536), a=chance.randrange(256), b=chance.randrange(256),
                                    c=chance.randrange(256))


def _raw(text: str) -> str:
    for pattern, shown in _STEPS:
        text = pattern.sub(shown, text)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
