"""Values of one figure over a span of time as a few bytes.

The first byte says how: 0 for runs of equal values, as numbers of variable length; else the size of each value in
bytes. The shorter of the two is stored. Values of one size are read at once, runs one by one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

_RUNS = 0
_TWO_BYTES = 2
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LONGEST_RUN = 1_440


def pack(values: Sequence[int]) -> bytes:
    """Pack values that are not negative."""
    runs = bytearray([_RUNS])
    for value, run in groupby(values):
        _append(runs, sum(1 for _ in run))
        _append(runs, value)
    most = max(values, default=0)
    size = next((size for size in _CODES if most < 1 << 8 * size), None)
    if size is None or len(runs) <= 1 + size * len(values):
        return bytes(runs)
    return bytes([size]) + _in_order(array(_CODES[size], values)).tobytes()


def unpack(body: bytes) -> Sequence[int]:
    """Read what `pack` wrote. Bytes that it did not write give some numbers, of bounded length."""
    body = bytes(body)
    size = body[0] if body else _RUNS
    code = _CODES.get(size)
    if code is not None:
        values = array(code)
        values.frombytes(body[1 : len(body) - (len(body) - 1) % size])
        return _in_order(values)
    found: list[int] = []
    numbers = _numbers(body)
    for length, value in zip(numbers[::2], numbers[1::2], strict=False):
        found += [value] * min(length, _LONGEST_RUN)
    return found


def unpack_one(body: bytes, wanted: int) -> int:
    """One of the values that `unpack` gives; 0 if there are fewer."""
    size = body[0] if body else _RUNS
    if size in _CODES:
        place = 1 + wanted * size
        return int.from_bytes(body[place : place + size], "little") if place + size <= len(body) else 0
    values = unpack(body)
    return values[wanted] if wanted < len(values) else 0


def two_of_each(bodies: Iterable[bytes], first: int, second: int) -> Iterator[tuple[int, int]]:
    """Two of the values that `unpack` gives, of many. The size that is most frequent is read without a call."""
    one, other = 2 * first + 1, 2 * second + 1
    least = max(one, other) + 2
    for body in bodies:
        if len(body) >= least and body[0] == _TWO_BYTES:
            yield body[one] | body[one + 1] << 8, body[other] | body[other + 1] << 8
        else:
            yield unpack_one(body, first), unpack_one(body, second)


def _numbers(body: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in body[1:]:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
        else:
            numbers.append(number)
            number = shift = 0
    return numbers


def _in_order(values: array[int]) -> array[int]:
    """The smallest byte first, whatever this machine does."""
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _append(body: bytearray, number: int) -> None:
    while number > 0x7F:
        body.append(number & 0x7F | 0x80)
        number >>= 7
    body.append(number)
