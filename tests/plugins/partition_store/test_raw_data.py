"""Raw data is untouched: the whole tree, or every object with its ETag, is the same after every console action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest
from moto.server import ThreadedMotoServer

from console.core.backend import Flag, Operation
from console.core.item import ItemKey
from plugins.partition_store.actions import INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.sink import METADATA, PAYLOAD
from tests.faults.world import confirm
from tests.plugins.partition_store.consoles import carry_out, console_on
from tests.plugins.partition_store.stores import Store, part, run_id, tree_hash

FAILED, DONE, ABSENT = part(9), part(10), part(4)
INSIST = Operation(flags=frozenset({INCLUDE_TERMINAL, Flag.RESPECT_BACKOFF}))
ACTIONS: dict[str, tuple[Operation, Any]] = {
    "retry": (INSIST, FAILED),
    "reprocess": (Operation(PartitionAction.REPROCESS), DONE),
    "mark_terminal": (Operation(PartitionAction.MARK_TERMINAL), FAILED),
    "pause": (Operation(PartitionAction.PAUSE), FAILED),
    "backfill": (Operation(PartitionAction.BACKFILL), ABSENT),
}
Look = Callable[[], object]


@pytest.fixture(params=["disk", "s3"])
def sink(request: pytest.FixtureRequest, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[dict[str, Any], Look]]:
    """How to open it, and a look at everything in it."""
    for partition in (FAILED, DONE):
        store.run(partition, run_id(1))
    if request.param == "disk":
        yield {}, lambda: tree_hash(store.raw)
        return
    for name, value in {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="raw")
    client.put_bucket_versioning(Bucket="raw", VersioningConfiguration={"Status": "Enabled"})
    for path in store.raw.rglob("*"):
        if path.name in (PAYLOAD, METADATA):
            client.put_object(Bucket="raw", Key=str(path.relative_to(store.raw)), Body=path.read_bytes())

    def look() -> object:
        found = client.list_object_versions(Bucket="raw")
        assert len(found["Versions"]) == 4
        return [(v["Key"], v["ETag"], v["VersionId"], v["LastModified"]) for v in found["Versions"]], found.get("DeleteMarkers")

    try:
        yield {"raw_sink": "s3://raw", "s3": {"endpoint": endpoint, "client_options": {"allow_http": True}}}, look
    finally:
        client.close()
        urlopen(Request(f"{endpoint}/moto-api/reset", method="POST")).close()
        server.stop()


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_its_undo_and_the_validation_after_it_leave_raw_data(
    store: Store, sink: tuple[dict[str, Any], Look], name: str, tmp_path: Path
) -> None:
    given, look = sink
    operation, partition = ACTIONS[name]
    store.put(FAILED, attempt_count=3)
    store.put(DONE, "success", current_run_id=run_id(1), record_count=2)
    backend = store.open(**given)
    before, rows = look(), store.rows()
    with console_on(backend, tmp_path) as operations:
        override = carry_out(operations, operation, ItemKey("parts", partition))
        assert override.counts == {"applied": 1}
        assert look() == before
        plan = operations.undo(override.override_id)
        assert operations.carry_out(plan, confirm(plan)).counts == {"applied": 1}
        assert (look(), store.rows()) == (before, rows)
        carry_out(operations, operation, ItemKey("parts", partition))
    store.clock = type(store.clock)(backend.now())
    store.validate(backend)
    backend.item(ItemKey("parts", partition), backend.now())
    assert look() == before
