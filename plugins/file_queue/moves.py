"""Moves a task from one state to another. A task is never lost, duplicated or overwritten, even after a crash.

1. Rename `x.done` to a private name. The process whose rename succeeds owns the task.
2. Read the file again and compare it with the plan. If it differs, rename it back.
3. Write the new content to a new file and fsync it.
4. Link the new file as `x.task`. Linking fails if that name exists, so nothing is overwritten.
5. Fsync the folder, remove the private file and the second name of the new file, and fsync again.

A crash leaves the private file behind. If there is also a task file, step 4 was done and recovery removes the private
file. If not, the private file is the unchanged task and recovery renames it back. Moves share a lock and recovery holds
it exclusively, so recovery never takes a move in progress for an interrupted one.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from console.core.backend import APPLIED, Image, Outcome, OutcomeKind
from console.core.faults import BackendBusy, BackendFault
from console.sql.guarded import conflict
from plugins.file_queue.folder import (
    Folder,
    ParsedName,
    State,
    UnreadableFile,
    file_name,
    new_name,
    new_token,
    parse_name,
    private_name,
)
from plugins.file_queue.rows import TaskImage, image_of, parse_object

_RECOVERY_TIMEOUT = 2.0
_POLL_INTERVAL = 0.02
_IDENTITY = ("created_at", "func_path", "args", "kwargs")

Fields = dict[str, Any]


class Move(NamedTuple):
    """One guarded change of a task file."""

    id: str
    before: Image
    after: Image


class ClaimedFile(NamedTuple):
    """A task file that this process owns under a private name."""

    id: str
    state: State
    token: str
    fields: Fields
    stat: os.stat_result
    encode: Callable[[Fields], bytes]

    @property
    def private(self) -> str:
        return private_name(self.id, self.state, self.token)

    @property
    def new(self) -> str:
        return new_name(self.id, self.token)


class NotMoved(Exception):
    """The task was not moved and is unchanged. The outcome says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


def as_json(fields: Fields) -> bytes:
    return json.dumps(fields).encode()


def _compact(fields: Fields) -> bytes:
    """As msgspec writes it."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _encoder_of(content: bytes, fields: Fields) -> Callable[[Fields], bytes]:
    """How this content was written, so that an undo restores the same bytes."""
    for encode in (as_json, _compact):
        with suppress(ValueError):
            if encode(fields) == content:
                return encode
    return as_json


def claim(folder: Folder, id: str, state: State, difference: Callable[[Fields], Outcome | None]) -> ClaimedFile:
    """Steps 1 and 2. Raises FileNotFoundError if the file is missing, NotMoved if its content differs."""
    token = new_token()
    private = private_name(id, state, token)
    try:
        folder.rename(file_name(id, state), private)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotMoved(Outcome(OutcomeKind.REJECTED, error.strerror or str(error))) from None
    try:
        content = folder.read(private)
        fields = parse_object(content)
        stat = folder.stat(private)
        refused = difference(fields)
    except UnreadableFile as why:
        content, fields, stat, refused = b"", {}, None, Outcome(OutcomeKind.CHANGED_SINCE, f"its file {why}")
    if refused is not None or stat is None:
        release(folder, id, state, private)
        raise NotMoved(refused or Outcome(OutcomeKind.CHANGED_SINCE, "no longer there"))
    return ClaimedFile(id, state, token, fields, stat, _encoder_of(content, fields))


def release(folder: Folder, id: str, state: State, private: str) -> None:
    """Give a claimed task its name back. If the name is taken by now, the private file stays and the item shows it."""
    try:
        folder.link(private, file_name(id, state))
    except OSError as error:
        detail = f"{error.strerror or error}; the task is kept in {private!r}"
        raise NotMoved(Outcome(OutcomeKind.REJECTED, detail)) from None
    folder.remove(private)


def publish(folder: Folder, claimed: ClaimedFile, state: State, fields: Fields) -> None:
    """Steps 3 and 4. If the new file cannot be created, release the task and raise NotMoved."""
    try:
        folder.create(claimed.new, claimed.encode(fields), claimed.stat)
        folder.link(claimed.new, file_name(claimed.id, state))
    except OSError as error:
        folder.remove(claimed.new)
        release(folder, claimed.id, claimed.state, claimed.private)
        if isinstance(error, FileExistsError):
            raise NotMoved(Outcome(OutcomeKind.CHANGED_SINCE, f"a .{state} file with the same id exists")) from None
        raise NotMoved(Outcome(OutcomeKind.REJECTED, error.strerror or str(error))) from None


def finish(folder: Folder, published: Sequence[ClaimedFile]) -> None:
    """Step 5, once for several moves."""
    folder.sync()
    for claimed in published:
        folder.remove(claimed.private)
        folder.remove(claimed.new)
    folder.sync()


class Mover:
    """Compares and sets the task files of one queue."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue

    def compare_and_set(self, moves: Sequence[Move]) -> list[Outcome]:
        outcomes = self._pass(dict(enumerate(moves)))
        missing = {n: move for n, move in enumerate(moves) if n not in outcomes}
        if missing and self.recover(move.id for move in missing.values()):
            outcomes.update(self._pass(missing))
        missing = {n: move for n, move in missing.items() if n not in outcomes}
        if missing:
            now = self.images([move.id for move in missing.values()])
            for (n, move), image in zip(missing.items(), now, strict=True):
                outcomes[n] = conflict(move.before, image, TaskImage._fields)
        return [outcomes[n] for n in range(len(moves))]

    def _pass(self, moves: dict[int, Move]) -> dict[int, Outcome]:
        """Move each file once. A move whose file is missing gets no outcome."""
        outcomes: dict[int, Outcome] = {}
        published: list[ClaimedFile] = []
        with Folder(self._queue) as folder, folder.locked():
            for n, move in moves.items():
                try:
                    published.append(self._move(folder, move))
                except FileNotFoundError:
                    continue
                except NotMoved as not_moved:
                    outcomes[n] = not_moved.outcome
                else:
                    outcomes[n] = APPLIED
            try:
                if published:
                    finish(folder, published)
            except OSError as error:
                raise BackendFault(error.strerror or str(error), where=str(self._queue)) from None
        return outcomes

    def _move(self, folder: Folder, move: Move) -> ClaimedFile:
        source, target = State(move.before[0]), State(move.after[0])

        def difference(fields: Fields) -> Outcome | None:
            found = image_of(source, fields)
            return None if found == move.before else conflict(move.before, found, TaskImage._fields)

        claimed = claim(folder, move.id, source, difference)
        publish(folder, claimed, target, {**claimed.fields, **TaskImage(*move.after).fields})
        return claimed

    # -- recovery --------------------------------------------------------------------------------

    def images(self, ids: Sequence[str]) -> list[Image | None]:
        """The current image of each task, from whichever file it is in."""
        with Folder(self._queue) as folder:
            files = _files_of(folder, ids)
            return [_image(folder, files[id]) for id in ids]

    def recover(self, ids: Iterable[str]) -> bool:
        """Complete or revert the interrupted moves of these tasks; returns whether there were any."""
        wanted = set(ids)
        with Folder(self._queue) as folder:
            left = {id for id, named in _files_of(folder, wanted).items() if any(n.token for _, n in named)}
            if not left:
                return False
            end = time.monotonic() + _RECOVERY_TIMEOUT
            while True:
                with folder.locked(alone=True) as locked:
                    if locked:
                        files = _files_of(folder, left)
                        for id in left:
                            _recover(folder, id, files[id])
                        folder.sync()
                        return True
                if time.monotonic() > end:
                    raise BackendBusy("another process is moving files", where=str(self._queue))
                time.sleep(_POLL_INTERVAL)

    def unfinished(self) -> list[str]:
        """The ids of all tasks whose move is in progress or was interrupted."""
        with Folder(self._queue) as folder:
            return sorted({named.id for name in folder.names() if (named := parse_name(name)).token})


_Files = list[tuple[str, ParsedName]]


def _files_of(folder: Folder, ids: Iterable[str]) -> dict[str, _Files]:
    wanted = set(ids)
    found: dict[str, _Files] = defaultdict(list)
    for name in folder.names():
        named = parse_name(name)
        if named.id in wanted:
            found[named.id].append((name, named))
    return found


def _image(folder: Folder, files: _Files) -> Image | None:
    plain = [(name, named.state) for name, named in files if named.state and not named.token]
    held = plain or [(name, named.state) for name, named in files if named.state]
    if not held:
        return None
    if len(held) > 1:
        return (" and ".join(sorted(str(state) for _, state in held)), *([None] * 4))
    name, state = held[0]
    assert state is not None
    try:
        fields = parse_object(folder.read(name))
    except (UnreadableFile, FileNotFoundError) as why:
        return (str(state), None, None, None, str(why))
    return image_of(state, fields) or (str(state), None, None, None, None)


def _recover(folder: Folder, id: str, files: _Files) -> None:
    plain = [name for name, named in files if named.state and not named.token]
    private = [(name, named.state) for name, named in files if named.state and named.token]
    if not plain and len(private) == 1:
        name, state = private[0]
        assert state is not None
        folder.link(name, file_name(id, state))
        folder.remove(name)
        plain, private = [file_name(id, state)], []
    for name, _ in private:
        if any(_same_task(folder, name, other) for other in plain):
            folder.remove(name)
    if plain:
        for name, named in files:
            if named.token and not named.state:
                folder.remove(name)


def _same_task(folder: Folder, private: str, other: str) -> bool:
    """Whether the private file is certainly an earlier state of the same task, so that it may be removed."""
    one, two = folder.stat(private), folder.stat(other)
    if one is None or two is None:
        return False
    if one.st_ino == two.st_ino:
        return True
    try:
        mine, theirs = parse_object(folder.read(private)), parse_object(folder.read(other))
    except (UnreadableFile, FileNotFoundError):
        return False
    return all(mine.get(key) == theirs.get(key) for key in _IDENTITY)
