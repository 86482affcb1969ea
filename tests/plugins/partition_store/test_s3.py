"""The raw sink in S3, against a server that speaks it on loopback: read, never written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from moto.server import ThreadedMotoServer

from console.core.backend import Operation
from console.core.faults import Unreachable
from console.testing import NOON
from plugins.partition_store.actions import INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition, S3Sink, open_sink, runs
from tests.plugins.partition_store.stores import Store, act, drafts, part, run_id, skipped

P = part()
BUCKET = "raw"


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    import boto3

    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    try:
        yield {"endpoint": endpoint, "client_options": {"allow_http": True}}
    finally:
        client.close()
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()  # one process shares what servers hold
        server.stop()


def sink_of(options: dict[str, Any]) -> S3Sink:
    sink = open_sink(f"s3://{BUCKET}/pre/fix", timedelta(seconds=5), options)
    assert isinstance(sink, S3Sink)
    return sink


def put_run(sink: S3Sink, partition: Partition, run: str, payload: bytes, metadata: bytes | None) -> None:
    base = sink._path(*partition.segments, f"run_id={run}")
    obstore.put(sink._store, f"{base}/{PAYLOAD}", payload)
    if metadata is not None:
        obstore.put(sink._store, f"{base}/{METADATA}", metadata)


def etags(sink: S3Sink) -> dict[str, Any]:
    return {entry["path"]: (entry["e_tag"], entry["last_modified"]) for batch in sink._store.list() for entry in batch}


def test_runs_as_on_disk(options: dict[str, Any]) -> None:
    sink = sink_of(options)
    put_run(sink, P, run_id(1), b"{}\n{}\n", b'{"record_count": 2}')
    put_run(sink, P, run_id(2), b"{}\n", None)
    put_run(sink, part(10), run_id(1), b"", b"{}")
    assert [(r.run_id, r.sealed, r.record_count, r.size) for r in runs(sink, P)] == [
        (run_id(1), True, 2, 25), (run_id(2), False, None, 3)
    ]
    assert b"".join(sink.payload(P, run_id(1))) == b"{}\n{}\n"
    with pytest.raises(FileNotFoundError):
        sink.metadata(P, run_id(9))
    assert runs(sink, Partition("..", "a", "b", "2026-11-01")) == []


def test_actions_and_validation_leave_every_object_alone(options: dict[str, Any], tmp_path: Path) -> None:
    sink = sink_of(options)
    put_run(sink, P, run_id(1), b"{}\n{}\n", b'{"record_count": 2}')
    store = Store(tmp_path / "etl")
    key = store.put(P, attempt_count=5)
    backend = store.open(raw_sink=f"s3://{BUCKET}/pre/fix", s3=options)
    before = etags(sink)
    for action in (PartitionAction.MARK_TERMINAL, PartitionAction.CLEAR_TERMINAL, PartitionAction.PAUSE, PartitionAction.UNPAUSE):
        act(backend, key, Operation(action))
    act(backend, key, Operation(flags=frozenset({INCLUDE_TERMINAL})))
    assert store.validate(backend) == 1
    assert (store.row(P)["error_message"], store.row(P)["current_run_id"]) == (None, run_id(1))
    act(backend, key, Operation(PartitionAction.REPROCESS), store.clock.now())
    assert store.validate(backend) == 1
    assert dict(backend.item(key, NOON).extra)[f"run {run_id(1)} (current)"]
    assert etags(sink) == before
    other = store.put(part(10))
    assert "has no run" in str(skipped(backend, other))


def test_many_partitions_are_asked_about_at_once(options: dict[str, Any], tmp_path: Path) -> None:
    sink = sink_of(options)
    store = Store(tmp_path / "etl")
    keys = store.put_all([(part(day), {"status": "failed"}) for day in range(1, 29)])
    for day in range(1, 29, 2):
        put_run(sink, part(day), run_id(1, day), b"{}\n", b'{"record_count": 1}')
    backend = store.open(raw_sink=f"s3://{BUCKET}/pre/fix", s3=options)
    found = {draft.key: draft.skipped for draft in drafts(backend, keys)}
    assert [found[str(key)] is None for key in keys] == [bool(day % 2) for day in range(1, 29)]


def test_an_unreachable_bucket_blocks_with_the_reason(options: dict[str, Any], tmp_path: Path) -> None:
    store = Store(tmp_path / "etl")
    key = store.put(P)
    lost = {**options, "endpoint": "http://127.0.0.1:9"}
    backend = store.open(raw_sink=f"s3://{BUCKET}/pre", s3=lost)
    assert "cannot be reached" in str(skipped(backend, key))
    assert "raw sink" in dict(backend.item(key, NOON).extra)
    with pytest.raises(Unreachable):
        sink_of(lost).sizes(P)
