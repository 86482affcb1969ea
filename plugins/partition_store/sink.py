"""The raw sink: immutable runs of a partition in folders, on a local disk or in S3. It is only ever read.

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
"""Who logs in where, and with what: libraries repeat the endpoint's URL in their errors."""
_LARGEST_METADATA = 2**20
_PIECE = 2**20


class OutsideSink(Unreachable):
    """A path of the raw sink leads out of it"""


class Partition(NamedTuple):
    """The key of a partition."""

    source: str
    customer_id: str
    query_name: str
    logical_date: str

    @property
    def invalid(self) -> str | None:
        """Why no path may be made of this key, if none may."""
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
    """One run of a partition. Sealed means both its files are there."""

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
    """What is asked of a sink. Every method raises Unreachable when it cannot be known."""

    place: str
    far: bool
    """Every question is a journey over a network."""

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
    """Only the ids, which cost no metadata."""
    return [] if partition.invalid else sorted(id for id in sink.sizes(partition) if _RUN_ID.fullmatch(id))


def _run(sink: RawSink, partition: Partition, run_id: str, files: dict[str, int]) -> Run:
    size, sealed = sum(files.values()), {PAYLOAD, METADATA} <= files.keys()
    if not _RUN_ID.fullmatch(run_id):
        return Run(run_id, size, sealed, problem="its run_id is not a time in UTC with milliseconds")
    if METADATA not in files:
        return Run(run_id, size, sealed)
    try:
        told = parse_metadata(sink.metadata(partition, run_id))
    except (FileNotFoundError, ValueError) as error:
        return Run(run_id, size, sealed, problem=str(error))
    version = told.get("schema_version")
    return Run(run_id, size, sealed, told["record_count"], None if version is None else str(version)[:80])


def parse_metadata(content: bytes) -> dict[str, Any]:
    """ValueError says in words why it is no metadata."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("metadata.json is not valid JSON") from None
    if not isinstance(told, dict) or type(told.get("record_count")) is not int or told["record_count"] < 0:
        raise ValueError("metadata.json has no record_count")
    return told


def open_sink(url: str, deadline: timedelta, options: dict[str, Any] | None = None) -> RawSink:
    """A path, or `s3://bucket/prefix`."""
    if url.startswith("s3://"):
        return S3Sink(url, deadline, options or {})
    return LocalSink(expanded(url.removeprefix("file://"), ConfigFault).absolute())


class LocalSink:
    """Runs in folders. No symlink below the root is followed: each step down is opened by its descriptor."""

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
                    raise OutsideSink(f"{segment!r} is no folder of the raw sink; links are never followed") from None
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
        """None for what is no folder of its own: a symlink there is never a run."""
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
    """Runs under a prefix of a bucket. Credentials and region come from the environment, as everywhere."""

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

    def _lost(self, error: Exception) -> Unreachable:
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
            raise self._lost(error) from None
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
            raise self._lost(error) from None
