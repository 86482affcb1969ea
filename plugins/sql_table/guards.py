"""Chooses the guard that writes a mapping's rows: the shared one for a plain UPDATE by one key, else one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from console.core.backend import Change, Image, Outcome
from console.core.item import ItemKey
from console.sql.guarded import Target
from plugins.sql_table.image import RowImage
from plugins.sql_table.layout import MappedLayout, is_integer
from plugins.sql_table.mysql_guard import MysqlGuard
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.row_guard import RowGuard
from plugins.sql_table.tables import is_mysql
from plugins.sql_table.writes import WriteRule


class Guard(Protocol):
    """Compares and sets the rows of changes."""

    def compare_and_set(self, changes: Sequence[Change]) -> list[Outcome]: ...

    def images(self, keys: Sequence[ItemKey]) -> dict[ItemKey, Image]: ...


def mapping_guards(resolved: ResolvedMapping, layout: MappedLayout, image: RowImage) -> dict[str, Guard]:
    """The guard of each action."""
    return {action: _guard(resolved, layout, image, rule) for action, rule in image.rules.items()}


def _guard(resolved: ResolvedMapping, layout: MappedLayout, image: RowImage, rule: WriteRule) -> Guard:
    """The shared guard where it fits, because it is faster; otherwise a RowGuard."""
    if is_mysql(resolved.database):
        return MysqlGuard(resolved, layout, image, rule)
    table = resolved.table
    key = layout.keys[0]
    integer = is_integer(key, sqlite=resolved.sqlite)
    plain_update = (
        rule.by_update and rule.lock is None and len(layout.keys) == 1 and table.is_table
        and all(part.read is None and not part.stored.generated for part in image.parts)
        and all(part.column in table.columns for part in image.parts)
        and not any(mark in table.name + (table.schema or "") for mark in (".", "%"))
        and (integer or "text" in key.type.lower() or "char" in key.type.lower())
    )
    if not plain_update:
        return RowGuard(resolved, layout, image, rule)
    columns = tuple(part.column for part in image.parts)
    target = Target(table.full_name, resolved.mapping.keys[0], columns, integer_key=integer)
    return resolved.database.guard(target)
