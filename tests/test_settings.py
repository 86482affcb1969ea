"""Configuration: what is accepted, and the exact line an operator reads for what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, SecretStr

from console.core.faults import ConfigFault
from console.core.policy import Exponential, FixedDelays, RetryPolicy
from console.core.text import parse_duration
from console.settings import BackendSettings, find_config, load, loads, mask_text, mask_url
from tests.depth import examples

ROOT = Path(__file__).parent.parent
FILE = Path("c.yaml")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RETRIAGE_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "UNSET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("PW", "hunter2")
    monkeypatch.setenv("BAD_PW", "p@ss/word")


def complaint(text: str | bytes) -> str:
    with pytest.raises(ConfigFault) as caught:
        loads(text, FILE)
    return str(caught.value)


def one_backend(text: str) -> BackendSettings:
    return loads(f"backends:\n  q: {{plugin: p, {text}}}\n", FILE).backends[0]


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


# --- what is accepted


def test_the_example_is_valid_and_complete() -> None:
    text = (ROOT / "config.example.yaml").read_text()
    found = loads(text, Path("config.example.yaml"))
    assert [backend.name for backend in found.backends] == [
        "analysis-queue", "jobs", "job-files", "analyses", "partitions", "steps", "rq-jobs", "mailers", "shop",
        "reports", "river", "mail",
    ]  # fmt: skip
    assert found.console.model_fields_set == set(type(found.console).model_fields)


def test_the_example_shows_the_defaults() -> None:
    shown = loads((ROOT / "config.example.yaml").read_text()).console
    default = loads("console:").console
    for name in ("refresh", "confirm_from", "max_items", "canary_failure_limit", "canary_deadline",
                 "watch_for", "chunk_target", "deadline", "read_only"):  # fmt: skip
        assert getattr(shown, name) == getattr(default, name), name
    assert shown.trail_url() == default.trail_url()


def test_plain_words_that_yaml_1_1_would_twist_stay_text() -> None:
    found = loads("console: {operator: no, views: {night: 12:30, mode: 010, ship: on}}").console
    assert found.operator == "no"
    assert dict(found.views) == {"night": "12:30", "mode": "010", "ship": "on"}


def test_variables_and_home_are_expanded(tmp_path: Path) -> None:
    backend = one_backend('url: "sqlite:///~/q.db?x=~", path: ~/files, note: "a ~/b $${X} ${UNSET:-d}"')
    assert backend.options.values == {
        "url": f"sqlite:///{tmp_path}/q.db?x=~",
        "path": f"{tmp_path}/files",
        "note": "a ~/b ${X} d",
    }


def test_the_trail_lies_in_the_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place() -> str:
        return loads("console:").console.trail_url()

    assert place() == f"sqlite:///{tmp_path}/.local/state/retriage/trail.db"
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    assert place() == "sqlite:////srv/state/retriage/trail.db"


def test_settings_are_frozen() -> None:
    console = loads("console: {views: {a: b}}").console
    with pytest.raises(ValueError, match="frozen"):
        console.read_only = True
    with pytest.raises(TypeError):
        console.views["a"] = "c"  # type: ignore[index]
    assert loads("console:").as_read_only().console.read_only


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("{}", RetryPolicy(3, FixedDelays((timedelta(minutes=1),)))),
        ("{max_attempts: 4}", RetryPolicy(4, FixedDelays((timedelta(minutes=1),)))),
        ("{delays: [5m, 1h]}", RetryPolicy(3, FixedDelays((timedelta(minutes=5), timedelta(hours=1))))),
        ("{base: 1s, cap: 1m, jitter: 25%}",
         RetryPolicy(3, Exponential(timedelta(seconds=1), 2.0, timedelta(minutes=1), 0.25))),
        ("{unrecoverable: [], retryable: false}",
         RetryPolicy(3, FixedDelays((timedelta(minutes=1),)), retryable=False)),
    ],
)  # fmt: skip
def test_a_policy_goes_over_the_systems_own(policy: str, expected: RetryPolicy) -> None:
    configured = one_backend(f"policy: {policy}").policy
    assert configured.override().over(RetryPolicy(3, FixedDelays((timedelta(minutes=1),)))) == expected


# --- what is not: the exact line

BACKEND = "backends: {q: {plugin: p, "

BAD = [
    ("", "c.yaml: the file is empty. Start from config.example.yaml."),
    ("# only a comment\n", "c.yaml: the file is empty. Start from config.example.yaml."),
    ("- a\n", "c.yaml:1: expected the sections console: and backends: at the top"),
    ("console: 5\n", "c.yaml:1: console: expected a section of key: value lines, found a number"),
    ("console:\n  refesh: 5s\n", "c.yaml:2: console.refesh: unknown key. Did you mean 'refresh'?"),
    ("consoel:\n  refresh: 5s\n", "c.yaml:1: consoel: unknown key. Did you mean 'console'?"),
    ("zzz: 1\n", "c.yaml:1: zzz: unknown key. Known: alerts, approvals, backends, console, history, limits, permissions."),
    ("console:\n  read_only: true\n  read_only: false\n",
     "c.yaml:3: console.read_only: duplicate key, first in line 2. Keep one."),
    ("console:\n  read_only: no\n", "c.yaml:2: console.read_only: expected true or false, found text. "
     "Write true or false; yes, no, on and off are text here."),
    ("console:\n  read_only: 1\n", "c.yaml:2: console.read_only: expected true or false, found a number"),
    ("console:\n  max_items: 12:30\n", "c.yaml:2: console.max_items: expected a whole number, found text. "
     "Write plain decimal digits without quotes; 12:30, 010 and 0x1f are text here."),
    ("console:\n  max_items: 010\n", "c.yaml:2: console.max_items: expected a whole number, found text. "
     "Write plain decimal digits without quotes; 12:30, 010 and 0x1f are text here."),
    ("console:\n  max_items: many\n", "c.yaml:2: console.max_items: expected a whole number, found text"),
    ("console:\n  max_items: true\n", "c.yaml:2: console.max_items: expected a whole number, found true or false"),
    ("console:\n  max_items: 1.5\n", "c.yaml:2: console.max_items: expected a whole number, found a number"),
    ("console:\n  max_items: 0\n", "c.yaml:2: console.max_items: must be at least 1"),
    ("console:\n  operator: 7\n", "c.yaml:2: console.operator: expected text, found a number. Put it in quotes."),
    ("console:\n  operator:\n", "c.yaml:2: console.operator: expected text, found nothing"),
    ("console:\n  refresh: 5\n",
     "c.yaml:2: console.refresh: expected a duration with a unit, such as 30s, 5m, 2h or 30d"),
    ("console:\n  refresh: 0s\n", "c.yaml:2: console.refresh: must be longer than zero"),
    ("console:\n  canary_failure_limit: 20\n",
     "c.yaml:2: console.canary_failure_limit: expected a share from 0 to 1, or a percentage such as 20%"),
    ("console:\n  anchor: here\n",
     "c.yaml:2: console.anchor: expected syslog, or the full path of a file (~/ is fine)"),
    ("console:\n  trail: /x.db\n",
     "c.yaml:2: console.trail: expected sqlite:///PATH or postgresql://USER@HOST/DATABASE"),
    ("console:\n  runbooks:\n    x: javascript:alert(1)\n",
     "c.yaml:3: console.runbooks.x: expected a web address that starts with https://"),
    ("console:\n  views: [a]\n", "c.yaml:2: console.views: expected a section of key: value lines, found a list"),
    ("console:\n  views:\n    x: 'foo:bar'\n",
     "c.yaml:3: console.views.x: Unknown field 'foo' (column 1). Fields: backend, "
     "condition, type, status, key, error, cause, attempts, created, updated, next, expires, recoverable, text. "
     "To search for this as text, put it in quotes."),
    ("console:\n  views:\n    '': 'type:{x}'\n", "c.yaml:3: console.views.: needs a name"),
    ("console:\n  views: {x: 'attempts:{x}'}\n", "c.yaml:2: console.views.x: "
     "'{x}' is not a number of attempts (column 10). Write a whole number, such as 3."),
    ("console:\n  operator: ${UNSET}\n",
     "c.yaml:2: console.operator: ${UNSET} is not set or empty. Set it, or write ${UNSET:-default}"),
    ("console:\n  refresh: ${EMPTY}\n",
     "c.yaml:2: console.refresh: ${EMPTY} is not set or empty. Set it, or write ${EMPTY:-default}"),
    ("console:\n  operator: ${a b}\n",
     "c.yaml:2: console.operator: ${ needs a name and a }, as in ${NAME}. Write $${ for a plain ${."),
    ("console:\n\trefresh: 5s\n", "c.yaml:2: a tab in the indentation. Indent with spaces."),
    ("console: {}\n---\nconsole: {}\n", "c.yaml:2: a second document starts here. Keep one, and remove the ---."),
    ("console: &x\n  operator: *x\n",
     "c.yaml:1: anchors (&name) are not allowed. Remove it, or put the value in quotes.\n"
     "c.yaml:2: aliases (*name) are not allowed. Write the value out, or put it in quotes."),
    ("console: !!python/object:os.system {}\n",
     "c.yaml:1: tags (!…) are not allowed. Put the value in quotes."),
    ("console: !x!y z\n", "c.yaml:1: tags (!…) are not allowed. Put the value in quotes."),
    ("console: {views: {1: x}}\n", "c.yaml:1: console.views: a key must be text. Put it in quotes."),
    ("? [a]\n: b\n", "c.yaml:1: a key must be text. Put it in quotes."),
    ('console: {"a\\e": x}\n', "c.yaml:1: console: the key a\\x1b contains a control character"),
    ('console: {operator: "a\\0"}\n', "c.yaml:1: console.operator: contains a control character. Remove it."),
    ('console: {operator: "\\ud800"}\n', "c.yaml:1: console.operator: contains a control character. Remove it."),
    ('console: {operator: "\\UFFFFFFFF"}\n', "c.yaml:1: not valid YAML: an escape or number is out of range"),
    ("console: " + "[" * 50_000, "c.yaml:1: nested deeper than 16 levels"),
    ("console: {a: b\n", "c.yaml:2: not valid YAML: expected ',' or '}', but got '<stream end>'"),
    ("console: {operator: ${PW}}\n",
     "c.yaml:1: a { where , or } should be. Inside {…} put ${NAME} in quotes."),
    ("a: b: c\n", "c.yaml:1: not valid YAML: mapping values are not allowed here"),
    (b"console:\n  \xff\xfe\n", "c.yaml:2: not UTF-8 text"),
    (b"\x7fELF\x02\x01\x00\x00", "c.yaml:1: not a text file: it contains a control character"),
    (b"#" * 262_145, "c.yaml: larger than 256 KB. Is this the right file?"),
    ("backends: {Q_1: {plugin: p}}\n", "c.yaml:1: backends.Q_1: a backend's name may have only a-z, 0-9 and -"),
    ("backends:\n  q:\n", "c.yaml:2: backends.q: expected a section with at least plugin:, found nothing"),
    ("backends:\n  q: {url: x}\n",
     "c.yaml:2: backends.q.plugin: required, but missing. `retriage plugins` lists the installed ones."),
    ("backends:\n  q: {plugin: 3}\n",
     "c.yaml:2: backends.q.plugin: expected text, found a number. `retriage plugins` lists the installed ones."),
    (BACKEND + "policy: {delays: [5m], base: 1s}}}",
     "c.yaml:1: backends.q.policy: delays and base cannot be used together. "
     "Keep either delays, or base, multiplier and cap."),
    (BACKEND + "policy: {cap: 1h}}}", "c.yaml:1: backends.q.policy: cap needs base, which is the first delay"),
    (BACKEND + "policy: {delays: [5m,\n  soon]}}}", "c.yaml:2: backends.q.policy.delays[1]: "
     "expected a duration with a unit, such as 30s, 5m, 2h or 30d"),
    (BACKEND + "policy: {max_atempts: 4}}}",
     "c.yaml:1: backends.q.policy.max_atempts: unknown key. Did you mean 'max_attempts'?"),
    (BACKEND + "policy: {unrecoverable: ['']}}}",
     "c.yaml:1: backends.q.policy.unrecoverable[0]: must not be empty, since it would match everything"),
    (BACKEND + "policy: {unrecoverable: malformed}}}",
     "c.yaml:1: backends.q.policy.unrecoverable: expected a list such as [a, b], found text"),
    (BACKEND + "policy: none}}",
     "c.yaml:1: backends.q.policy: expected a section of key: value lines, found text"),
    (BACKEND + "url: 'postgresql://db/app?password=hunter2'}}",
     "c.yaml:1: backends.q.url: a password in the URL's query (password=) can end up in logs. "
     "Write user:${NAME}@host, or use a passfile."),
    (BACKEND + "url: 'postgresql://db/app?a=b&sslPassword=${PW}'}}",
     "c.yaml:1: backends.q.url: a password in the URL's query (sslpassword=) can end up in logs. "
     "Write user:${NAME}@host, or use a passfile."),
    (BACKEND + "url: 'postgresql://u:${BAD_PW}@db/app'}}",
     "c.yaml:1: backends.q.url: the password in the URL must be percent-encoded: "
     "@ as %40, / as %2F, ? as %3F, # as %23"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), BAD, ids=[line[-50:] for _, line in BAD])
def test_bad_input_gets_one_clear_line(text: str | bytes, line: str) -> None:
    assert complaint(text) == line


def test_all_mistakes_are_reported_at_once_in_order() -> None:
    text = "backends:\n  q: {plugin: p, policy: {cap: x}}\n  Z: 1\nconsole:\n  refresh: 5\n  themes: x\nextra: 1\n"
    assert [line.split(": ")[:2] for line in complaint(text).splitlines()] == [
        ["c.yaml:2", "backends.q.policy.cap"],
        ["c.yaml:3", "backends.Z"],
        ["c.yaml:3", "backends.Z"],
        ["c.yaml:5", "console.refresh"],
        ["c.yaml:6", "console.themes"],
        ["c.yaml:7", "extra"],
    ]


def test_a_passfile_in_the_query_is_fine() -> None:
    assert one_backend("url: 'postgresql://u@db/app?passfile=/etc/pass'").options.values


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.binary(), st.text("{}[]:-,&*!|>'\"%@`#?~$ \n\tab01\\ux", max_size=60)))
@example('"\\U00110000"')
@example("%YAML " + "1" * 5000 + ".1\n---\na")
@example("? ")
@example("%TAG ! x\n---\n!a b")
@example("a: |99\n x")
@example("\ufeff")
def test_whatever_the_file_holds_only_a_config_fault_comes_out(content: str | bytes) -> None:
    for text in (content, f"console:\n  operator: {content}\n" if isinstance(content, str) else content):
        try:
            loads(text, FILE)
        except ConfigFault as fault:
            assert all(line.isprintable() for line in str(fault).splitlines())


_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8))
_names = st.sampled_from(["console", "backends", "policy", "plugin", "delays", "views", "trail", "url", "q", "anchor"])
_trees = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4)
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["console", "backends"]), st.dictionaries(_names, _trees, max_size=4)))
def test_whatever_the_shape_only_a_config_fault_comes_out(tree: dict[str, object]) -> None:
    import yaml

    try:
        loads(yaml.safe_dump(tree), FILE)
    except ConfigFault as fault:
        assert str(fault)


_spans = st.integers(1, 10**10).map(lambda n: timedelta(milliseconds=n))
_backoffs = st.lists(_spans, min_size=1, max_size=4).map(lambda delays: FixedDelays(tuple(delays))) | st.builds(
    Exponential, _spans, st.integers(2, 40).map(lambda halves: halves / 2), st.none() | _spans, st.integers(0, 100).map(lambda n: n / 100)
)
_policies = st.builds(RetryPolicy, st.integers(0, 10**6), _backoffs, st.booleans(), st.none() | _spans)


def _as_config(shown: str) -> str:
    """What an operator would write to get the policy that is shown."""
    attempts, backoff, *rest = shown.split(" · ")
    keys = [f"max_attempts: {attempts.removesuffix(' attempts')}", f"retryable: {str('not retryable' not in rest).lower()}"]
    keys += [f"max_age: {part.removeprefix('until ').removesuffix(' old')}" for part in rest if part.startswith("until ")]
    if "×" not in backoff:
        return "{" + ", ".join([*keys, f"delays: [{backoff}]"]) + "}"
    backoff, _, jitter = backoff.partition(" ±")
    base, _, factor = backoff.partition(" ×")
    factor, _, cap = factor.partition(" up to ")
    keys += [f"base: {base}", f"multiplier: {factor}", f"jitter: {jitter or '0%'}", *([f"cap: {cap}"] if cap else [])]
    return "{" + ", ".join(keys) + "}"


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_policies)
def test_a_policy_written_as_it_is_shown_is_the_same_policy(policy: RetryPolicy) -> None:
    (found,) = loads(f"backends: {{q: {{plugin: p, policy: {_as_config(str(policy))}}}}}", FILE).backends
    assert found.policy.override().over(RetryPolicy()) == policy
    assert str(found.policy.override().over(RetryPolicy())) == str(policy)


# --- a plugin's own keys


class Options(BaseModel):
    url: SecretStr
    dialect: str = "tasks"
    every: Annotated[timedelta, BeforeValidator(parse_duration)] = timedelta(seconds=1)
    columns: dict[str, int] = {}
    limit: int | None = None


def test_a_plugins_keys_become_its_model() -> None:
    found = one_backend("url: 'postgresql://u:${PW}@db/app', every: 5m, columns: {a: 1}").parse(Options)
    assert found.url.get_secret_value() == "postgresql://u:hunter2@db/app"
    assert found.every == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("dialct: x, url: y", "c.yaml:2: backends.q.dialct: unknown key. Did you mean 'dialect'?"),
        ("dialect: x", "c.yaml:2: backends.q.url: required, but missing"),
        ("url: x,\n  columns: {a: b}", "c.yaml:3: backends.q.columns.a: expected a whole number, found text"),
        ("url: x, limit: '3'", "c.yaml:2: backends.q.limit: expected a whole number, found text. "
         "Write plain decimal digits without quotes; 12:30, 010 and 0x1f are text here."),
        ("url: x, every: hunter2",
         "c.yaml:2: backends.q.every: '…' is not a duration such as 90s, 5m, 1h30m or 2d"),
    ],
)  # fmt: skip
def test_mistakes_in_a_plugins_keys_name_the_line(keys: str, line: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        one_backend(keys).parse(Options)
    assert str(caught.value) == line


# --- secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw@db/app", "postgresql://u:***@db/app"),
        ("postgresql://u:p@w@db/app", "postgresql://u:***@db/app"),
        ("postgresql://u:p/w?x@db/app", "postgresql://u:***@db/app"),
        ("postgresql://u:p@a?b=c@db/app", "postgresql://u:***@a?b=***"),
        ("postgresql://:pw@db", "postgresql://:***@db"),
        ("postgresql+psycopg://u:pw@[::1]:5432/app", "postgresql+psycopg://u:***@[::1]:5432/app"),
        ("postgresql://oncall@db:5432/app?sslmode=require", "postgresql://oncall@db:5432/app?sslmode=require"),
        ("postgresql://db/app?password=pw&x=1", "postgresql://db/app?password=***&x=1"),
        ("postgresql://db/app?p%61ssword=pw", "postgresql://db/app?p%61ssword=***"),
        ("postgresql://db/app?passfile=/etc/pass", "postgresql://db/app?passfile=/etc/pass"),
        ("s3://bucket/p?secret_access_key=pw&region=eu", "s3://bucket/p?secret_access_key=***&region=eu"),
        ("sqlite:////srv/a:b@c.db", "sqlite:////srv/a:b@c.db"),
        ("u:pw@db", "u:***@db"),
        ("host=db user=u password='p w' dbname=x", "host=db user=u password=*** dbname=x"),
        ("://", "://"),
        ("", ""),
    ],
)
def test_shown_urls_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_urls_inside_a_message_are_masked() -> None:
    assert mask_text("no route to 'postgresql://u:pw@db/x' (token=abc)") == (
        "no route to 'postgresql://u:***@db/x' (token=***"
    )


@given(st.text())
def test_masking_never_raises(url: str) -> None:
    mask_url(url)
    mask_text(url)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs"]), min_size=1))
def test_no_password_survives_masking(password: str) -> None:
    secret = f"<{password}>"
    assert secret not in mask_url(f"postgresql://user:{secret}@db/app?sslmode=require")


def test_no_repr_shows_a_secret() -> None:
    text = (
        "console: {trail: 'postgresql://u:${PW}@db/t'}\n"
        "backends: {q: {plugin: p, url: 'postgresql://u:${PW}@db/a', other: '${PW}'}}\n"
    )
    found = loads(text, FILE)
    assert "hunter2" not in repr(found) + str(found) + repr(found.backends[0].parse(Secretive))


class Secretive(BaseModel):
    url: SecretStr
    other: SecretStr


POSITIONS = [
    *(f"console: {{{key}: '${{PW}}'}}" for key in (
        "read_only", "refresh", "confirm_from", "trail", "anchor", "canary_failure_limit", "views", "runbooks")),
    "console: {runbooks: {x: '${PW}'}}",
    "backends: ${PW}",
    "backends: {q: '${PW}'}",
    "backends: {q: {plugin: p, policy: '${PW}'}}",
    "backends: {q: {plugin: p, policy: {delays: ['${PW}'], max_attempts: '${PW}', jitter: '${PW}'}}}",
    "backends: {q: {plugin: p, url: 'postgresql://u:${PW}/x@db'}}",
    "backends: {q: {plugin: p, url: 'postgresql://db?password=${PW}'}}",
    "console: *hunter2",
    "console: &hunter2 {}",
    "console: !hunter2 {}",
    "console: !hunter2!x {}",
]  # fmt: skip


@pytest.mark.parametrize("text", POSITIONS)
def test_no_mistake_quotes_a_value(text: str) -> None:
    assert "hunter2" not in complaint(text)


# --- the file


def test_a_file_others_can_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o620, 0o602):
        path = written(tmp_path, "console:\n", mode)
        with pytest.raises(ConfigFault) as caught:
            load(path)
        assert str(caught.value) == (
            f"{path}: Others can write to this file. Run: chmod go-w {path}"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "console:\n")
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigFault, match="belongs to another user"):
        load(path)


def test_a_written_password_needs_a_private_file(tmp_path: Path) -> None:
    text = "backends:\n  q: {plugin: p, url: 'postgresql://u:hunter2@db/app'}\n"
    path = written(tmp_path, text, 0o644)
    with pytest.raises(ConfigFault) as caught:
        load(path)
    assert str(caught.value) == (
        f"{path}:2: backends.q.url: others can read this password. "
        f"Write ${{NAME}} instead, or run: chmod 600 {path}"
    )
    path.chmod(0o600)
    assert load(path).backends
    assert load(written(tmp_path, text.replace("hunter2", "${PW}"), 0o644)).backends


@pytest.mark.parametrize("default", ["${UNSET:-hunter2}", "x${PW}"])
def test_a_partly_written_password_counts_as_written(tmp_path: Path, default: str) -> None:
    path = written(tmp_path, f"backends: {{q: {{plugin: p, url: 'postgresql://u:{default}@db'}}}}\n", 0o644)
    with pytest.raises(ConfigFault, match="others can read"):
        load(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("none", "No such file"), (".", "Not a regular file"), ("pipe", "Not a regular file")):
        with pytest.raises(ConfigFault, match=words):
            load(tmp_path / name)
    with pytest.raises(ConfigFault, match="Cannot open the file"):
        load(tmp_path / "a\0b")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match="larger than 256 KB"):
        load(written(tmp_path, "#" * 300_000))


def test_where_the_config_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_config() is None
    default = tmp_path / ".config/retriage/config.yaml"
    default.parent.mkdir(parents=True)
    default.touch()
    assert find_config() == default
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert find_config() is None
    monkeypatch.setenv("RETRIAGE_CONFIG", "~/named.yaml")
    assert find_config() == tmp_path / "named.yaml"
    assert find_config(Path("x.yaml")) == Path("x.yaml")


def test_settings_load_nothing_heavy() -> None:
    code = "import sys, console.settings; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"sqlalchemy", "textual", "rich", "plugins"} & set(found)
