"""Every attack has a home of its own, and a place with queues."""

from __future__ import annotations

from tests.cli.conftest import _own_home, _own_now, place

__all__ = ["_own_home", "_own_now", "place"]
