"""What was read of one task, with the versions of the files it was read from."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from console.core.item import Condition
from plugins.file_queue.folder import STATES, ParsedName, Stamp
from plugins.file_queue.rows import Content, Finished, Result, Task

CLOCK_TICK = 50_000_000
"""Nanoseconds. The clock of a file system may be this coarse."""
_MARGIN = 2_000_000_000
"""Nanoseconds. What was read sooner after a change is not kept between processes: some file systems store seconds."""
_LARGEST_CONTENT = 32 * 1024
"""In characters. The content of such a task is read again by every process."""

_CONDITIONS = {str(condition): condition for condition in (Condition.DONE, Condition.CANCELLED)}

NOT_READ = Stamp(-1, -1, -1, -1)
"""In place of the stamp of a result file that was not needed."""

File = tuple[str, ParsedName, Stamp]


class Entry(NamedTuple):
    """One task: unfinished, or finished and known only by its condition, or finished and read in full."""

    files: tuple[File, ...]
    result: Stamp | None
    settled: bool
    """Whether a later change of the files is certain to show in their stamps."""
    task: Task | None = None
    """None also for a file that is no task, and for one that was kept and is not decoded yet."""
    finished: Finished | None = None
    content: Content | str | None = None
    """What the task was made from, to be kept for other processes. A text is that content as it was kept."""
    lasting: bool = False
    """Whether another process may trust this entry as long as the stamps are the same."""

    @property
    def is_task(self) -> bool:
        return self.task is not None or self.finished is not None


def entry_of(
    files: tuple[File, ...], result: Stamp | None, read_at: int, task: Task | None = None,
    finished: Finished | None = None, content: Content | None = None,
) -> Entry:
    newest = max(max(stamp.modified, stamp.changed) for _, _, stamp in files)
    if result is not None:
        newest = max(newest, result.modified, result.changed)
    settled, lasting = newest + CLOCK_TICK < read_at, newest + _MARGIN < read_at
    return Entry(files, result, settled, task, finished, content, lasting)


def to_keep(id: str, entry: Entry) -> list[Any] | None:
    """An entry as JSON values; None if it is not kept: the task has several files, cannot be read, or just changed."""
    if not entry.lasting or len(entry.files) != 1 or (entry.content is None and entry.finished is None):
        return None
    _, named, stamp = entry.files[0]
    if named.state is None or named.token:
        return None
    content = entry.content if not isinstance(entry.content, Content) else _encoded(entry.content)
    if content is None and entry.finished is None:
        return None
    result = NOT_READ if content is None and entry.result is None else entry.result
    return [id, named.state, stamp, result, entry.finished, content]


def from_kept(kept: Any) -> tuple[str, Entry]:
    """Read what `to_keep` made. Raises ValueError, TypeError or LookupError for anything else."""
    id, state, stamp, result, finished, content = kept
    if not (isinstance(id, str) and (content is None or isinstance(content, str))):
        raise TypeError("neither an id nor content")
    if finished is not None:
        condition, updated_at = finished
        if not (updated_at is None or isinstance(updated_at, str)):
            raise TypeError("a time that is no text")
        finished = Finished(_CONDITIONS[condition], updated_at)
    elif content is None:
        raise ValueError("neither finished nor with content")
    named = ParsedName(id, STATES[state])
    file = (f"{id}.{state}", named, _stamp(stamp))
    return id, Entry((file,), None if result is None else _stamp(result), True, None, finished, content, True)


def _stamp(numbers: Any) -> Stamp:
    inode, size, modified, changed = numbers
    if not type(inode) is type(size) is type(modified) is type(changed) is int:
        raise TypeError("not a stamp")
    return Stamp(inode, size, modified, changed)


def _encoded(content: Content) -> str | None:
    try:
        kept = json.dumps(content)
    except (ValueError, RecursionError):
        return None
    return kept if len(kept) <= _LARGEST_CONTENT else None


def decoded(kept: str) -> Content:
    """Read the content of an entry that was kept. Raises ValueError, TypeError or RecursionError."""
    fields, result = json.loads(kept)
    if not isinstance(fields, dict):
        raise TypeError("fields that are no object")
    error, notes, status, attempts, began = result
    if notes or not all(isinstance(text, str | None) for text in (error, status, began)):
        raise TypeError("a result that is none")
    if not (attempts is None or type(attempts) is int):
        raise TypeError("attempts that are no number")
    return Content(fields, Result(error, (), status, attempts, began))
