"""Pages through so many rows of a large queue, and says what it held before and after."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path

from benchmarks.programs.listing import ListApp
from console.ui.widgets.item_list import ItemList

_WARM = 50_000
"""Rows after which every cache has seen as much as it keeps."""
_UNPAINTED = 50
"""Of so many pages one is painted: what is measured is what stays, not how long painting takes."""
_PAINTED = 40
"""Pages that are all painted to begin with: a list keeps a few hundred lines it has drawn."""
_FRAME = 0.02
_PATIENCE = 30.0


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
        await self._read(table)
        for _ in range(_PAINTED):
            table.action_page(1)
            await self._read(table)
            await asyncio.sleep(_FRAME)
        before = await self._page_to(table, _WARM)
        after = await self._page_to(table, self._rows)
        self.exit(message=f"paged {before:.3f} {after:.3f} {table.cursor - _WARM} ")

    async def _page_to(self, table: ItemList, row: int) -> float:
        while table.cursor < row and not (table.complete and table.cursor >= table.total() - 1):
            with self.batch_update():
                for _ in range(_UNPAINTED):
                    table.action_page(1)
                    await self._read(table)
            await asyncio.sleep(_FRAME)
        return _held()

    async def _read(self, table: ItemList) -> None:
        """Until the row under the cursor is there."""
        end = time.monotonic() + _PATIENCE
        while table.item is None:
            if time.monotonic() > end:
                raise TimeoutError(f"row {table.cursor} of {table.total()} has not come within {_PATIENCE:g} s")
            await asyncio.sleep(0.0005)


if __name__ == "__main__":
    PagingApp(Path(sys.argv[1]), int(sys.argv[2])).run()
