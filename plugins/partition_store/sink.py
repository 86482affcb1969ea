"""The raw sink: immutable runs of a partition in folders, on a local disk or in S3. It is only read.

`<root>/<source>/customer_id=<c>/query_name=<q>/logical_date=<date>/run_id=<id>/{payload.jsonl,metadata.json}`
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from console.core.faults import ConfigFault, Unreachable
from console.core.paths import expanded

PAYLOAD, METADATA = "payload.jsonl", "metadata.json"
_RUN_ID = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_USER = re.compile(r"//[^/\s]*@")
"""User and password in a URL: libraries repeat the endpoint's URL in their errors."""
_LARGEST_METADATA = 2**20
_PIECE = 2**20


class OutsideSink(Unreachable):
    """A path in the raw sink points outside it"""


class Partition(NamedTuple):
    """The key of a partition."""

    source: str
    customer_id: str
    query_name: str
    logical_date: str

    @property
    def invalid(self) -> str | None:
        """Why this key must not become a path; None if it may."""
        for name, part in zip(self._fields, self, strict=True):
            if part in ("", ".", "..") or "/" in part or "\\" in part or not part.isprintable():
                return f"its {name} is not a plain path segment"
        try:
            "".join(self).encode()
            plain = date.fromisoformat(self.logical_date).isoformat() == self.logical_date
        except UnicodeEncodeError:
            return "its key is not valid UTF-8"
        except ValueError:
            plain = False
        return None if plain else "its logical_date is not a date"

    @property
    def segments(self) -> tuple[str, str, str, str]:
        return (
            self.source,
            f"customer_id={self.customer_id}",
            f"query_name={self.query_name}",
            f"logical_date={self.logical_date}",
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a partition. A sealed run has both its files."""

    run_id: str
    size: int = 0
    sealed: bool = False
    record_count: int | None = None
    schema_version: str | None = None
    problem: str | None = None

    @property
    def at(self) -> datetime | None:
        """When it was extracted, by its id."""
        try:
            return datetime.fromisoformat(self.run_id) if _RUN_ID.fullmatch(self.run_id) else None
        except ValueError:
            return None

    def __str__(self) -> str:
        parts = [f"{self.size} bytes", "sealed" if self.sealed else "not sealed"]
        if self.record_count is not None:
            parts.append(f"{self.record_count} records")
        return ", ".join([*parts, self.problem] if self.problem else parts)


class RawSink(Protocol):
    """Reads runs. Every method raises Unreachable if the sink does not answer."""

    place: str
    far: bool
    """It is on the network, so each call takes a while."""

    def sizes(self, partition: Partition) -> dict[str, dict[str, int]]:
        """run_id → file name → size."""

    def metadata(self, partition: Partition, run_id: str) -> bytes:
        """The run's metadata file; FileNotFoundError when there is none."""

    def payload(self, partition: Partition, run_id: str) -> Iterator[bytes]:
        """The run's payload, in pieces; FileNotFoundError when there is none."""


def runs(sink: RawSink, partition: Partition) -> list[Run]:
    """The runs of a partition, oldest first."""
    if partition.invalid:
        return []
    return [_run(sink, partition, id, files) for id, files in sorted(sink.sizes(partition).items())]


def run_ids(sink: RawSink, partition: Partition) -> list[str]:
    """The ids of the runs in the validator's order, whatever they look like, without reading their metadata."""
    return [] if partition.invalid else sorted(sink.sizes(partition))


def _run(sink: RawSink, partition: Partition, run_id: str, files: dict[str, int]) -> Run:
    size, sealed = sum(files.values()), {PAYLOAD, METADATA} <= files.keys()
    odd = None if _RUN_ID.fullmatch(run_id) else "its run_id is not a time in UTC with milliseconds"
    if METADATA not in files:
        return Run(run_id, size, sealed, problem=odd)
    try:
        metadata = parse_metadata(sink.metadata(partition, run_id))
        stated = stated_count(metadata, -1)
    except (FileNotFoundError, ValueError) as error:
        return Run(run_id, size, sealed, problem=odd or str(error))
    version = metadata.get("schema_version")
    count = None if stated < 0 else stated
    return Run(run_id, size, sealed, count, None if version is None else str(version)[:80], odd)


class NotJudged(ValueError):
    """The real validator stops with an error at such a run, and stores nothing."""


def parse_metadata(content: bytes) -> Any:
    """The JSON of a metadata file. Raises ValueError if it is no JSON in UTF-8."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError):
        raise ValueError("metadata.json is not valid JSON") from None


def stated_count(metadata: Any, default: int) -> int:
    """How many records the metadata states: whatever `int` takes, and `default` if it states none."""
    try:
        return int(metadata.get("record_count", default))
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise NotJudged("metadata.json is no object, or its record_count is no number") from None


def open_sink(url: str, deadline: timedelta, options: dict[str, Any] | None = None) -> RawSink:
    """A path, or `s3://bucket/prefix`."""
    if url.startswith("s3://"):
        return S3Sink(url, deadline, options or {})
    return LocalSink(expanded(url.removeprefix("file://"), ConfigFault).absolute())


class LocalSink:
    """Runs in folders. Opens each folder by its descriptor, so that no symlink below the root is followed."""

    far = False

    def __init__(self, root: Path) -> None:
        self.place = str(root)
        self._root = root

    def _descend(self, *segments: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = os.open(self._root, flags)
        except OSError as error:
            raise Unreachable(f"the raw sink: {error.strerror}", where=self.place) from None
        for segment in segments:
            try:
                below = os.open(segment, flags | os.O_NOFOLLOW, dir_fd=fd)
            except OSError as error:
                os.close(fd)
                if isinstance(error, FileNotFoundError):
                    raise
                if error.errno in (errno.ELOOP, errno.ENOTDIR):  # how O_NOFOLLOW says it depends on O_DIRECTORY
                    raise OutsideSink(f"{segment!r} is no folder of the raw sink; links are not followed") from None
                raise Unreachable(f"the raw sink: {segment!r}: {error.strerror}", where=self.place) from None
            os.close(fd)
            fd = below
        return fd

    def sizes(self, partition: Partition) -> dict[str, dict[str, int]]:
        try:
            fd = self._descend(*partition.segments)
        except FileNotFoundError:
            return {}
        try:
            names = [name for name in os.listdir(fd) if name.startswith("run_id=")]  # noqa: PTH208  by descriptor
        finally:
            os.close(fd)
        found = {name.removeprefix("run_id="): self._files(partition, name) for name in names}
        return {run_id: files for run_id, files in found.items() if files is not None}

    def _files(self, partition: Partition, folder: str) -> dict[str, int] | None:
        """Files and sizes of a run; None if it is not a real folder (a symlink is never a run)."""
        try:
            fd = self._descend(*partition.segments, folder)
        except (FileNotFoundError, Unreachable):
            return None
        try:
            sizes = {}
            for name in (PAYLOAD, METADATA):
                try:
                    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(found.st_mode):
                    sizes[name] = found.st_size
            return sizes
        finally:
            os.close(fd)

    def metadata(self, partition: Partition, run_id: str) -> bytes:
        return b"".join(self._pieces(partition, run_id, METADATA, _LARGEST_METADATA))

    def payload(self, partition: Partition, run_id: str) -> Iterator[bytes]:
        return self._pieces(partition, run_id, PAYLOAD, None)

    def _pieces(self, partition: Partition, run_id: str, name: str, limit: int | None) -> Iterator[bytes]:
        folder = self._descend(*partition.segments, f"run_id={run_id}")
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unreachable(f"the raw sink: {name}: {error.strerror}", where=self.place) from None
        finally:
            os.close(folder)
        try:
            read = 0
            while (limit is None or read < limit) and (piece := os.read(fd, _PIECE)):
                read += len(piece)
                yield piece
        except OSError as error:
            raise Unreachable(f"the raw sink: {name}: {error.strerror}", where=self.place) from None
        finally:
            os.close(fd)


class S3Sink:
    """Runs under a prefix of a bucket. Credentials and region come from the environment."""

    far = True

    def __init__(self, url: str, deadline: timedelta, options: dict[str, Any]) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        parts = urlsplit(url)
        self.place = f"s3://{parts.netloc}{parts.path}"
        self._prefix = tuple(segment for segment in parts.path.split("/") if segment)
        self._errors = (BaseError, OSError)
        client: Any = {"timeout": deadline, "connect_timeout": deadline, **options.get("client_options", {})}
        self._store = S3Store(
            parts.netloc,
            client_options=client,
            retry_config={"max_retries": 2, "retry_timeout": deadline},
            **{key: value for key, value in options.items() if key != "client_options"},
        )

    def _path(self, *segments: str) -> str:
        return "/".join((*self._prefix, *segments))

    def _unreachable(self, error: Exception) -> Unreachable:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Unreachable(f"the raw sink: {_USER.sub('//', first)[:200]}", where=self.place)

    def sizes(self, partition: Partition) -> dict[str, dict[str, int]]:
        base = self._path(*partition.segments)
        found: dict[str, dict[str, int]] = {}
        try:
            for batch in self._store.list(f"{base}/"):
                for entry in batch:
                    folder, _, name = entry["path"].removeprefix(f"{base}/").partition("/")
                    if folder.startswith("run_id=") and name in (PAYLOAD, METADATA):
                        found.setdefault(folder.removeprefix("run_id="), {})[name] = entry["size"]
        except self._errors as error:
            raise self._unreachable(error) from None
        return found

    def metadata(self, partition: Partition, run_id: str) -> bytes:
        content = b""
        for piece in self._pieces(partition, run_id, METADATA):
            content += piece
            if len(content) >= _LARGEST_METADATA:
                break
        return content

    def payload(self, partition: Partition, run_id: str) -> Iterator[bytes]:
        return self._pieces(partition, run_id, PAYLOAD)

    def _pieces(self, partition: Partition, run_id: str, name: str) -> Iterator[bytes]:
        try:
            for piece in self._store.get(self._path(*partition.segments, f"run_id={run_id}", name)):
                yield bytes(piece)
        except FileNotFoundError:
            raise
        except self._errors as error:
            raise self._unreachable(error) from None
