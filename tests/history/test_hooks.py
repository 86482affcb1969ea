"""Hooks against hostile texts and against programs and servers that hang, fail or flood. No shell, no secret shown."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from console.demo.incidents import HOSTILE
from console.history.hooks import CommandHook, WebHook

SHORT = timedelta(seconds=1)
LONG = timedelta(seconds=60)
SECRET = "canary-4711"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


# --- commands


def test_a_command_gets_hostile_text_as_data(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = "import sys, json; json.dump([json.load(sys.stdin), sys.argv[2:]], open(sys.argv[1], 'w'))"
    argument = "$(touch /tmp/owned); `id` && | > * ' \""
    text = json.dumps({"samples": HOSTILE})
    assert CommandHook("h", python(code, str(out), argument), LONG).call(text) == ""
    assert json.loads(out.read_text()) == [{"samples": list(HOSTILE)}, [argument]]


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(600)"
    began = time.monotonic()
    assert CommandHook("h", python(code), timedelta(seconds=3)).call("{}") == "timed out after 3 s"
    assert time.monotonic() - began < 30
    if pid.exists():
        for _ in range(100):
            if not Path(f"/proc/{pid.read_text()}").exists() or "\tZ" in _status(pid.read_text()):
                break
            time.sleep(0.05)
        else:
            pytest.fail("its child is still running")


def _status(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


def test_a_command_that_fails_says_why_safely() -> None:
    code = "import sys; sys.stderr.write('\\x1b[2Jno route\\x07 to pager\\nsecond line'); sys.exit(3)"
    assert CommandHook("h", python(code), LONG).call("{}") == "ended with code 3: ␛[2Jno route␇ to pager"


def test_a_command_that_floods_neither_fills_memory_nor_hangs() -> None:
    code = "import sys\nfor _ in range(400): sys.stderr.write('x' * 100_000); sys.stdout.write('y' * 100_000)\nsys.exit(1)"
    why = CommandHook("h", python(code), LONG).call("{}")
    assert why.startswith("ended with code 1: xxx")
    assert len(why) < 1_000


def test_a_command_need_not_read_what_it_gets() -> None:
    assert CommandHook("h", python("pass"), LONG).call("x" * 10_000_000) == ""


def test_a_command_that_does_not_exist() -> None:
    assert "cannot be started" in CommandHook("h", ["/nonexistent/page"], SHORT).call("{}")


# --- webhooks


@dataclass
class Web:
    """A server with a certificate for 127.0.0.1, and what it answers next."""

    port: int
    answers: list[int] = field(default_factory=list)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def hook(self, retries: int = 3, **headers: str) -> WebHook:
        self.pauses: list[float] = []
        url = f"https://127.0.0.1:{self.port}/services/{SECRET}?token={SECRET}"
        return WebHook("chat", url, LONG, retries, headers, self.pauses.append)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def web(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.got.append((self.path, dict(self.headers), body))
            self.send_response(found.answers.pop(0) if found.answers else 200)
            self.send_header("Location", f"https://127.0.0.1:{found.port}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found = Web(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


def test_a_webhook_gets_the_json(web: Web) -> None:
    text = json.dumps({"samples": HOSTILE})
    hook = web.hook(Authorization=f"Bearer {SECRET}")
    assert hook.call(text) == ""
    ((path, headers, body),) = web.got
    assert (path, headers["Authorization"]) == (f"/services/{SECRET}?token={SECRET}", f"Bearer {SECRET}")
    assert json.loads(body) == {"samples": list(HOSTILE)}
    assert SECRET not in hook.place


def test_a_temporary_failure_is_tried_again_with_growing_pauses(web: Web) -> None:
    web.answers = [503, 429, 500, 200]
    hook = web.hook()
    assert hook.call("{}") == ""
    assert (len(web.got), web.pauses) == (4, [1.0, 2.0, 4.0])
    web.answers = [503] * 9
    assert hook.call("{}") == "answered with status 503"
    assert len(web.got) == 8


@pytest.mark.parametrize("status", [400, 401, 404, 301, 302, 307])
def test_what_will_not_work_later_is_not_tried_again(web: Web, status: int) -> None:
    web.answers = [status]
    assert web.hook().call("{}") == f"answered with status {status}"
    assert [path.partition("?")[0] for path, *_ in web.got] == [f"/services/{SECRET}"]  # no redirect was followed


def test_a_certificate_that_is_not_trusted_gets_nothing(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    assert web.hook().call("{}") == "its certificate is not trusted"
    assert not web.got


def test_a_server_that_never_answers_is_given_up(web: Web) -> None:
    with threading_socket() as port:
        hook = WebHook("chat", f"https://127.0.0.1:{port}/{SECRET}", SHORT, 1, {}, lambda _: None)
        began = time.monotonic()
        why = hook.call("{}")
    assert "timed out" in why or "cannot be reached" in why
    assert SECRET not in why
    assert time.monotonic() - began < 30


class threading_socket:
    """A port that accepts connections and says nothing."""

    def __enter__(self) -> int:
        import socket

        self._socket = socket.create_server(("127.0.0.1", 0))
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_a_port_where_nobody_listens() -> None:
    why = WebHook("chat", f"https://127.0.0.1:1/{SECRET}", SHORT, 0, {}, lambda _: None).call("{}")
    assert why == "cannot be reached: ConnectionRefusedError"
