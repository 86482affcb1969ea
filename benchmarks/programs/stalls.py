"""The console on a large queue, scrolled and read again by itself; says how long its loop was held at most."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from pathlib import Path

from benchmarks.opening import open_queue
from console.core.confirm import Limits
from console.core.ports import Never
from console.core.session import Session
from console.process import SystemClock
from console.ui.app import Console
from console.ui.screens.failures import FailuresScreen


class Watched(Console):
    """Presses keys, and notes the longest step of the loop meanwhile."""

    keys = 0

    def on_mount(self) -> None:
        self.start(self._drive, "drive")

    async def _drive(self) -> None:
        while self.loading_session:
            await asyncio.sleep(0.02)
        await self.monitor.answered(60)
        await self.switch_mode("failures")
        screen = self.screen
        assert isinstance(screen, FailuresScreen)
        while screen.table.item is None:
            await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        longest = _watch(asyncio.get_running_loop())
        for n in range(self.keys):
            self.simulate_key("end" if n % 50 == 49 else "home" if n % 50 == 25 else "pagedown" if n % 3 else "down")
            if n % 20 == 0:
                screen.read_again()
                await self.monitor.read_again()
            await asyncio.sleep(0.03)
        self.exit(message=f"longest {longest[0]:.4f} ")


def _watch(loop: asyncio.AbstractEventLoop) -> list[float]:
    """Every callback is timed by the CPU it takes: a busy machine is nobody's stall."""
    longest = [0.0]
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - began)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign, assignment]
    loop.slow_callback_duration = 10
    return longest


if __name__ == "__main__":
    session = Session(
        (open_queue(Path(sys.argv[1])),), SystemClock(), Never(), Limits(), refresh=timedelta(seconds=1)
    )
    app = Watched(lambda: session)
    app.keys = int(sys.argv[2])
    app.run()
    if app.crash is not None:
        raise app.crash
