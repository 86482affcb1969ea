"""Nothing that reads can write: the connection itself refuses every other command."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from console.core.backend import Severity
from console.core.faults import BackendFault, ConfigFault, DeadlineExceeded, ReadOnlyRefused, Unreachable
from console.keyed.marks import GuardedScript, Move
from console.keyed.redis_server import READS, RedisServer, Script, shown_url
from console.process import SystemClock
from tests.plugins.redis.rq_store import OWN, RqStore, open_rq
from tests.redis_store import Server, contents, running_server

WRITES = ("SET", "DEL", "HSET", "ZADD", "LPUSH", "XADD", "EVAL", "EVALSHA", "SCRIPT", "FLUSHALL", "CONFIG", "RENAME", "EXPIRE", "PUBLISH")
CHANGE = "local function change(args) redis.call('SET', args[1], '1') return 1 end"


def opened(url: str, *, read_only: bool = True) -> RedisServer:
    return RedisServer(url, read_only=read_only, deadline=timedelta(seconds=5))


@pytest.mark.parametrize("command", WRITES)
def test_a_reading_connection_sends_no_command_that_writes(url: str, command: str) -> None:
    client = redis.Redis.from_url(url)
    client.set("a", "1")
    server = opened(url, read_only=False)
    for name in (command, command.lower(), command.encode()):
        with pytest.raises(ReadOnlyRefused):
            server.call(name, "a", "x", "y")
        with pytest.raises(ReadOnlyRefused):
            server._reader.execute_command(name, "a", "x", "y")
    assert contents(client) == {b"a": b"1"}


def test_no_allowed_command_can_write(url: str) -> None:
    """As Redis itself describes its commands."""
    with redis.Redis.from_url(url) as client:
        described = client.execute_command("COMMAND", "INFO", *sorted(READS))
    for command in described.values() if isinstance(described, dict) else described:
        flags = command["flags"] if isinstance(command, dict) else command[2]
        assert "write" not in {flag.decode() if isinstance(flag, bytes) else flag for flag in flags}, command


def test_without_the_right_to_write_no_script_is_sent(url: str) -> None:
    with pytest.raises(ReadOnlyRefused):
        opened(url).run(Script("return 1"), [], [])
    with pytest.raises(ReadOnlyRefused):
        GuardedScript(CHANGE, own=0, shared=0).run(opened(url), "", [Move(b"a", (), ())], [])


def test_check_says_what_the_user_could_do(url: str, server: Server) -> None:
    RqStore(url).harness()
    found = {finding.subject: finding for finding in open_rq(url, OWN, read_only=True).check(SystemClock())}
    assert found["persistence"].severity is Severity.WARNING
    assert "append-only file is off" in found["persistence"].message
    assert "cannot tell" in found["privileges"].message or "could write" in found["privileges"].message
    assert found["schema"].message == "RQ queues: default"


def test_faults_say_what_happened(url: str) -> None:
    with pytest.raises(Unreachable, match="No such file"):
        opened("unix:///nowhere/s").now()
    with pytest.raises(ConfigFault, match="must start with"):
        opened("http://cache")
    with pytest.raises(BackendFault) as raised:
        opened(url.replace("unix://", "unix://user:geheim@")).now()
    assert "geheim" not in str(raised.value)
    assert shown_url("rediss://user:geheim@cache:6380/3?ssl_cert_reqs=none") == "rediss://cache:6380/3"


def test_a_frozen_server_ends_a_read_at_the_deadline(url: str) -> None:
    import os
    import signal

    with running_server() as own:
        frozen = RedisServer(own.url, read_only=True, deadline=timedelta(seconds=1))
        frozen.now()
        os.kill(own.pid, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceeded):
                frozen.now()
        finally:
            os.kill(own.pid, signal.SIGCONT)
        frozen.now()
        frozen.close()


def test_a_cluster_is_read_only_unless_one_slot_has_all_keys() -> None:
    with running_server({"cluster-enabled": "yes", "databases": "1"}) as own:
        with redis.Redis.from_url(own.url) as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO").__str__().encode():
                pass
        from tests.plugins.redis.bullmq_store import BullStore

        rq, bull = RqStore(own.url), BullStore(own.url, prefix="{bull}")
        rq.harness()
        bull.harness()
        assert (rq.backend.is_scattered, bull.backend.is_scattered) == (True, False)
        assert rq.backend.check(SystemClock())[1].severity is Severity.WARNING
