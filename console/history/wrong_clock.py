"""Removes what a clock that was ahead has recorded, and takes back what it has packed too early."""

from __future__ import annotations

from console.history.figures import Figures
from console.history.storage import Transaction
from console.history.thinning import HOURS, TENS, set_packed_until


def forget_after(transaction: Transaction, minute: int) -> None:
    """Remove the samples of later times. The figures become what they were before them."""
    _unpack(transaction, minute)
    transaction.run("DELETE FROM @point WHERE minute > ?", (minute,))
    transaction.run("DELETE FROM @coverage WHERE first > ?", (minute,))
    transaction.run("UPDATE @coverage SET last = ? WHERE last > ?", (minute, minute))
    transaction.run("UPDATE @system SET since = ? WHERE since > ?", (minute, minute))
    transaction.run("UPDATE @cause SET first_seen = ? WHERE first_seen > ?", (minute, minute))
    transaction.run("UPDATE @cause SET last_seen = ? WHERE last_seen > ?", (minute, minute))
    transaction.run("""UPDATE @series SET value = coalesce((SELECT p.value FROM @point AS p
        WHERE p.series = series.id ORDER BY p.minute DESC LIMIT 1), 0)""")


def _unpack(transaction: Transaction, minute: int) -> None:
    """Make points again of the span that this minute is in, if it is packed, and forget the spans after it."""
    figures = Figures(transaction)
    if figures.tens_until <= minute:
        return
    hours = min(figures.hours_until, minute // HOURS.span * HOURS.span)
    tens = hours if figures.hours_until > minute else minute // TENS.span * TENS.span
    step = HOURS.step if figures.hours_until > minute else TENS.step
    ends = [*range(tens - 1, minute, step)]
    if minute % step:
        ends.append(ends[-1] + step)  # the value of this slot is the last one before the clock was ahead
    points = []
    series = [number for (number,) in transaction.all("SELECT id FROM @series")]
    for number, values in figures.values_over(ends, series).items():
        changes = zip(ends, [0, *values], values, strict=False)
        points += [(number, min(at, minute - 1), value) for at, before, value in changes if value != before]
    transaction.run("DELETE FROM @point WHERE minute >= ?", (tens - 1,))
    transaction.run("DELETE FROM @packed WHERE start >= ?", (tens,))
    transaction.many("INSERT INTO @point (series, minute, value) VALUES (?, ?, ?)", points)
    set_packed_until(transaction, HOURS, hours)
    set_packed_until(transaction, TENS, tens)
