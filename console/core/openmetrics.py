"""Writes figures as OpenMetrics text, which Prometheus and its textfile collector read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Sample = tuple[Mapping[str, str], float]
"""The labels and the value of one line."""


class Gauge(NamedTuple):
    """A figure that can go up and down, once or by labels."""

    name: str
    help: str
    samples: Sequence[Sample]
    unit: str = ""
    """Part of the name, as OpenMetrics asks: `seconds` for `…_seconds`."""


def openmetrics(gauges: Iterable[Gauge]) -> str:
    """All figures as one text, with its end mark."""
    lines: list[str] = []
    for gauge in gauges:
        lines.append(f"# TYPE {gauge.name} gauge")
        lines += [f"# UNIT {gauge.name} {gauge.unit}"] if gauge.unit else []
        lines.append(f"# HELP {gauge.name} {_escaped(gauge.help)}")
        lines += [f"{gauge.name}{_labels(labels)} {_number(value)}" for labels, value in gauge.samples]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    """Escaped, and without what UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode().translate(_ESCAPES)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
