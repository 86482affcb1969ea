"""A record separates what the system said about a person from what they say themselves, and shows a clock set back."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from console import identity
from console.core.confirm import Who, recorded
from console.identity import origin, who
from tests.cli.place import Place, environment, failed

OTHER_CLOCK = """
import os, sys, datetime, console.process as process
from console.__main__ import main
class Other(process.SystemClock):
    def now(self): return super().now() + datetime.timedelta(minutes=int(os.environ["MINUTES"]))
process.SystemClock = Other
sys.exit(main(sys.argv[1:]))
"""


def confirmation(place: Place) -> dict[str, Any]:
    """The newest confirmation on the trail."""
    records = [json.loads(line) for line in place.run("trail", "list", "--limit", "0").out.splitlines()]
    body: dict[str, Any] = next(record["body"] for record in records if record["kind"] == "confirmed")
    return body


def requeue(place: Place, id: str, *prefix: str, **more: str) -> None:
    command = [
        *prefix, sys.executable, "-m", "console", "--config", str(place.write_config()),
        "requeue", "--key", f"q/{id}", "--reason", "fixed", "--confirm", "1",
    ]
    done = subprocess.run(
        command, env=environment(place.folder) | more, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr


def test_another_uid_in_a_namespace_does_not_hide_the_real_one(place: Place) -> None:
    namespace = ["unshare", "--user", "--map-user=4242"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        namespace = []  # this machine allows none; the test below has the same on a copy of /proc
    place.queue("q", failed("a"))
    requeue(place, "a", *namespace)
    body = confirmation(place)
    me = pwd.getpwuid(os.getuid()).pw_name
    assert body["facts"]["uid"] == (4242 if namespace else os.getuid())
    assert body["by"] == (f"{me} (not proven, in a user namespace)" if namespace else me)
    assert body["facts"]["user_namespace"].startswith("user:[")
    outside = body["claims" if namespace else "facts"]
    assert outside["uid_outside"] == os.getuid()
    assert outside["uid_map"]


FAKED_PROC = """mount -t tmpfs none /proc && mkdir -p /proc/self/ns && ln -s 'user:[4026531837]' /proc/self/ns/user &&
echo 0 0 4294967295 > /proc/self/uid_map && echo 0 > /proc/self/loginuid && exec "$@" """


@pytest.mark.parametrize(
    "prefix",
    [
        ["unshare", "--user", "--map-user=4242", "--map-group=4242", "unshare", "--user", "--map-user=0", "--map-group=0"],
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", FAKED_PROC, "bash"],
    ],
    ids=["a namespace within a namespace", "a faked /proc"],
)
def test_what_a_namespace_can_choose_is_not_a_fact(place: Place, prefix: list[str]) -> None:
    """Each namespace names the users of the one inside it, and can mount anything over `/proc`."""
    bodies = [recorded(Who(0, "root", in_namespace=True), origin("0"))]
    faked = prefix[-1] == "bash"  # an older kernel tells its namespace in /proc only
    allowed = not subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    if allowed and (not faked or identity._asked_namespace()):
        place.queue("q", failed("a"))
        requeue(place, "a", *prefix)
        bodies.append(confirmation(place))
        assert bodies[-1]["facts"]["user_namespace"] != "user:[4026531837]"
    for body in bodies:
        assert body["facts"].keys() == {"uid", "pid", "user_namespace"}
        assert body["by"].endswith("(not proven, in a user namespace)")
        assert {"uid_outside", "uid_map", "loginuid", "parents", "login", "host"} < body["claims"].keys()


def proc(folder: Path, uid_map: str, namespace: str, loginuid: str = "1000") -> Path:
    own = folder / "self"
    (own / "ns").mkdir(parents=True)
    (own / "uid_map").write_text(uid_map)
    (own / "ns" / "user").symlink_to(namespace)
    (own / "loginuid").write_text(loginuid)
    (own / "sessionid").write_text("7")
    return folder


@pytest.mark.parametrize(
    ("uid_map", "namespace", "said"),
    [
        ("0 0 4294967295", "user:[4026531837]", "{me}"),
        ("{uid} 54321 1", "user:[4026532999]", "54321 (not proven, in a user namespace)"),
        ("{uid} {uid} 1", "user:[4026532999]", "{me} (not proven, in a user namespace)"),
        ("70000 0 1", "user:[4026532999]", "{uid} (not proven, in a user namespace)"),
        ("not a map", "user:[4026532999]", "{uid} (not proven, in a user namespace)"),
    ],
)
def test_the_name_comes_from_outside_the_namespace(tmp_path: Path, uid_map: str, namespace: str, said: str) -> None:
    words = {"uid": str(os.getuid()), "me": pwd.getpwuid(os.getuid()).pw_name}
    assert str(who("", proc(tmp_path, uid_map.format(**words), namespace))) == said.format(**words)


def test_the_environment_is_a_claim(place: Place) -> None:
    place.queue("q", failed("a"))
    claims = {"SSH_CONNECTION": "10.1.2.3 5 10.0.0.1 22", "SUDO_UID": "0", "SUDO_USER": "root", "LOGNAME": "root"}
    requeue(place, "a", **claims)
    body = confirmation(place)
    assert body["claims"]["ssh_peer"] == "10.1.2.3"
    assert body["claims"]["sudo_uid"] == "0"
    assert body["claims"]["sudo_user"] == "root"
    assert body["facts"]["uid"] == os.getuid()
    assert not {"ssh_peer", "sudo_uid", "sudo_user", "name"} & body["facts"].keys()
    assert body["facts"].keys() >= {"uid", "uid_map", "loginuid", "audit_session", "parents", "pid", "boot_id"}
    assert str(os.getpid()) in [parent.split()[0] for parent in body["facts"]["parents"]]
    assert "preloaded" not in body["facts"]
    shown = place.run("overrides", "list", "--format", "table").out
    assert "10.1.2.3" not in shown


def test_a_login_that_was_never_set_is_not_uid_4294967295(tmp_path: Path) -> None:
    facts = origin("0", proc(tmp_path, "0 0 4294967295", "user:[4026531837]", "4294967295")).facts
    assert facts["loginuid"] is None
    assert origin("0", tmp_path / "nothing").facts["loginuid"] is None


def test_a_preloaded_library_is_recorded(place: Place) -> None:
    place.queue("q", failed("a"))
    requeue(place, "a", LD_PRELOAD="/nonexistent/libfaketime.so")
    assert confirmation(place)["facts"]["preloaded"] == "/nonexistent/libfaketime.so"


def test_a_library_that_removes_its_name_from_the_environment_is_recorded(place: Place) -> None:
    hides = "import os, sys; del os.environ['LD_PRELOAD']; from console.__main__ import main; sys.exit(main(sys.argv[1:]))"
    place.queue("q", failed("a"))
    done = subprocess.run(
        [sys.executable, "-c", hides, "--config", str(place.write_config()), "requeue", "--key", "q/a", "--reason", "x", "--confirm", "1"],
        env=environment(place.folder) | {"LD_PRELOAD": "/nonexistent/hides.so"}, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert confirmation(place)["facts"]["preloaded"] == "/nonexistent/hides.so"


def at_another_time(place: Place, minutes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command while the clock of this machine is wrong by so many minutes."""
    return subprocess.run(
        [sys.executable, "-c", OTHER_CLOCK, "--config", str(place.write_config()), *arguments],
        env=environment(place.folder) | {"MINUTES": str(minutes)}, capture_output=True, text=True, check=False,
    )


def test_a_clock_that_was_set_back_shows(place: Place) -> None:
    place.queue("q", failed("a"), failed("b"), failed("c"))
    requeue(place, "a")
    done = at_another_time(place, -10, "requeue", "--key", "q/b", "--reason", "x", "--confirm", "1")
    assert done.returncode == 0, done.stderr
    assert 540 <= confirmation(place)["clock_behind"] <= 600
    shown = place.run("trail", "list", "--format", "table").out
    assert "behind the record before" in shown
    assert at_another_time(place, -20, "check").stdout.count("behind the trail's last record") == 1
    done = at_another_time(place, -60, "requeue", "--key", "q/c", "--reason", "x", "--confirm", "1")
    assert done.returncode == 3
    assert "clock is" in done.stderr


def test_a_plan_that_expired_stays_expired_when_the_clock_is_set_back(place: Place) -> None:
    place.queue("q", failed("a"))
    plan = json.loads(place.run("plan", "--key", "q/a").out)["plan_id"]
    for minutes in (60, 0, -5):
        done = at_another_time(place, minutes, "apply", plan, "--reason", "x", "--confirm", "1")
        assert done.returncode == 3, done.stderr
        assert "The plan expired" in done.stderr
