"""Pages through so many rows of a large queue, and says what it held before and after."""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

from benchmarks.programs.bare_list import ListApp
from console.ui.widgets.item_list import ItemList

_WARM = 50_000
"""Rows after which every cache has seen as much as it keeps."""


def _held() -> float:
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    fields = dict(line.split()[:2] for line in rollup.splitlines()[1:])
    return (int(fields["Private_Dirty:"]) + int(fields["Private_Clean:"])) / 1024


class PagingApp(ListApp):
    """Looks at every row once, as fast as they come."""

    def __init__(self, path: Path, rows: int) -> None:
        super().__init__(path)
        self._rows = rows

    async def _opened(self) -> None:
        await super()._opened()
        table = self.query_one(ItemList)
        before = await self._page_to(table, _WARM)
        after = await self._page_to(table, self._rows)
        self.exit(message=f"paged {before:.3f} {after:.3f} {table.cursor - _WARM} ")

    async def _page_to(self, table: ItemList, row: int) -> float:
        while table.cursor < row and not (table.complete and table.cursor >= table.total() - 1):
            table.action_page(1)
            while table.item is None:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        return _held()


if __name__ == "__main__":
    PagingApp(Path(sys.argv[1]), int(sys.argv[2])).run()
