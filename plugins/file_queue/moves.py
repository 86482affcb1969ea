"""Moving a task from one state to another so that it is never lost, never there twice, and never overwritten.

1. rename `x.done` to a private name: whoever wins this rename owns the task;
2. read it again and compare with what was planned; if it is not that, it gets its name back;
3. write the new content to a file of its own, fsync;
4. link that as `x.task`, which fails rather than overwrites;
5. fsync the folder, remove the private file and the spare name, fsync again.

A crash leaves the private file. If there is also a task file, the link was made and the move is finished;
if not, the private file is the task, unchanged, and gets its name back. Movers share a lock, and clearing up
takes it alone, so that a move in progress is never mistaken for one that was interrupted.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from console.core.backend import CHANGED, Image, Outcome, OutcomeKind
from console.core.faults import BackendBusy, BackendFault
from console.sql.guarded import conflict
from plugins.file_queue.folder import (
    Folder,
    Named,
    State,
    Unusable,
    file_name,
    new_name,
    new_token,
    parse,
    private_name,
)
from plugins.file_queue.rows import IMAGE, image_of, parse_object

_PATIENCE = 2.0
_NAP = 0.02
_SAME_TASK = ("created_at", "func_path", "args", "kwargs")

Fields = dict[str, Any]


class Move(NamedTuple):
    """One guarded change of a task file."""

    id: str
    before: Image
    after: Image


class Taken(NamedTuple):
    """A task this process holds under a private name."""

    id: str
    state: State
    token: str
    fields: Fields
    stat: os.stat_result

    @property
    def private(self) -> str:
        return private_name(self.id, self.state, self.token)

    @property
    def new(self) -> str:
        return new_name(self.id, self.token)


class NotTaken(Exception):
    """The move did not happen, and the task is as it was; the outcome says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


def as_json(fields: Fields) -> bytes:
    return json.dumps(fields).encode()


def take(folder: Folder, id: str, state: State, unlike: Callable[[Fields], Outcome | None]) -> Taken:
    """Steps 1 and 2. FileNotFoundError when there is no such file; NotTaken when it is not as expected."""
    token = new_token()
    private = private_name(id, state, token)
    try:
        folder.rename(file_name(id, state), private)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotTaken(Outcome(OutcomeKind.FAILED, error.strerror or str(error))) from None
    try:
        fields = parse_object(folder.read(private))
        stat = folder.stat(private)
        refused = unlike(fields)
    except Unusable as why:
        fields, stat, refused = {}, None, Outcome(OutcomeKind.CONFLICTED, f"its file {why}")
    if refused is not None or stat is None:
        give_back(folder, id, state, private)
        raise NotTaken(refused or Outcome(OutcomeKind.CONFLICTED, "no longer there"))
    return Taken(id, state, token, fields, stat)


def give_back(folder: Folder, id: str, state: State, private: str) -> None:
    """The task gets its name again. If that is taken by now, the private file stays and is shown."""
    try:
        folder.link(private, file_name(id, state))
    except OSError as error:
        detail = f"{error.strerror or error}; it is kept as {private!r}"
        raise NotTaken(Outcome(OutcomeKind.FAILED, detail)) from None
    folder.remove(private)


def place(folder: Folder, taken: Taken, state: State, fields: Fields) -> None:
    """Steps 3 and 4; NotTaken, with the task as it was, when the new file cannot be had."""
    try:
        folder.create(taken.new, as_json(fields), taken.stat)
        folder.link(taken.new, file_name(taken.id, state))
    except OSError as error:
        folder.remove(taken.new)
        give_back(folder, taken.id, taken.state, taken.private)
        if isinstance(error, FileExistsError):
            raise NotTaken(Outcome(OutcomeKind.CONFLICTED, f"there is a .{state} file of the same id")) from None
        raise NotTaken(Outcome(OutcomeKind.FAILED, error.strerror or str(error))) from None


def finish(folder: Folder, placed: Sequence[Taken]) -> None:
    """Step 5, for all moves of a chunk together."""
    folder.sync()
    for taken in placed:
        folder.remove(taken.private)
        folder.remove(taken.new)
    folder.sync()


class Mover:
    """Compare-and-set on the task files of one queue."""

    def __init__(self, queue: Path) -> None:
        self._queue = queue

    def swap(self, moves: Sequence[Move]) -> list[Outcome]:
        outcomes = self._pass(dict(enumerate(moves)))
        missing = {n: move for n, move in enumerate(moves) if n not in outcomes}
        if missing and self.clear_up(move.id for move in missing.values()):
            outcomes.update(self._pass(missing))
        missing = {n: move for n, move in missing.items() if n not in outcomes}
        if missing:
            now = self.images([move.id for move in missing.values()])
            for (n, move), image in zip(missing.items(), now, strict=True):
                outcomes[n] = conflict(move.before, image, IMAGE)
        return [outcomes[n] for n in range(len(moves))]

    def _pass(self, moves: dict[int, Move]) -> dict[int, Outcome]:
        """One outcome each; none for those whose file is not there."""
        outcomes: dict[int, Outcome] = {}
        placed: list[Taken] = []
        with Folder(self._queue) as folder, folder.locked():
            for n, move in moves.items():
                try:
                    placed.append(self._one(folder, move))
                except FileNotFoundError:
                    continue
                except NotTaken as not_taken:
                    outcomes[n] = not_taken.outcome
                else:
                    outcomes[n] = CHANGED
            try:
                if placed:
                    finish(folder, placed)
            except OSError as error:
                raise BackendFault(error.strerror or str(error), where=str(self._queue)) from None
        return outcomes

    def _one(self, folder: Folder, move: Move) -> Taken:
        source, target = State(move.before[0]), State(move.after[0])

        def unlike(fields: Fields) -> Outcome | None:
            found = image_of(source, fields)
            return None if found == move.before else conflict(move.before, found, IMAGE)

        taken = take(folder, move.id, source, unlike)
        place(folder, taken, target, {**taken.fields, **dict(zip(IMAGE[1:], move.after[1:], strict=True))})
        return taken

    # -- settling --------------------------------------------------------------------------------

    def images(self, ids: Sequence[str]) -> list[Image | None]:
        """Each task's image now, whichever of its files holds it."""
        with Folder(self._queue) as folder:
            files = _files_of(folder, ids)
            return [_image(folder, files[id]) for id in ids]

    def clear_up(self, ids: Iterable[str]) -> bool:
        """Finish or take back what a crash left of these tasks; whether there was anything."""
        wanted = set(ids)
        with Folder(self._queue) as folder:
            left = {id for id, named in _files_of(folder, wanted).items() if any(n.token for _, n in named)}
            if not left:
                return False
            end = time.monotonic() + _PATIENCE
            while True:
                with folder.locked(alone=True) as had:
                    if had:
                        files = _files_of(folder, left)
                        for id in left:
                            _clear(folder, id, files[id])
                        folder.sync()
                        return True
                if time.monotonic() > end:
                    raise BackendBusy("files are being moved by another process", where=str(self._queue))
                time.sleep(_NAP)

    def leftovers(self) -> list[str]:
        """The ids of all tasks with something left of a move, under way or interrupted."""
        with Folder(self._queue) as folder:
            return sorted({named.id for name in folder.names() if (named := parse(name)).token})


_Files = list[tuple[str, Named]]


def _files_of(folder: Folder, ids: Iterable[str]) -> dict[str, _Files]:
    wanted = set(ids)
    found: dict[str, _Files] = defaultdict(list)
    for name in folder.names():
        named = parse(name)
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
    except (Unusable, FileNotFoundError) as why:
        return (str(state), None, None, None, str(why))
    return image_of(state, fields) or (str(state), None, None, None, None)


def _clear(folder: Folder, id: str, files: _Files) -> None:
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
    """Only what is surely an earlier state of the same task may go."""
    one, two = folder.stat(private), folder.stat(other)
    if one is None or two is None:
        return False
    if one.st_ino == two.st_ino:
        return True
    try:
        mine, theirs = parse_object(folder.read(private)), parse_object(folder.read(other))
    except (Unusable, FileNotFoundError):
        return False
    return all(mine.get(key) == theirs.get(key) for key in _SAME_TASK)
