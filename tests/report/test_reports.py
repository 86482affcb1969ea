"""Reports with hostile texts in every place: no script, nothing fetched, valid HTML, no markup in Markdown."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import html5lib
import pytest

from console.__main__ import main
from console.cli.context import DemoOptions
from console.core.backend import Histogram, Operation
from console.core.confirm import Confirmation
from console.core.history import Snapshot, Trend
from console.core.plan import Matching
from console.core.query import Filter
from console.demo.build import open_demo
from console.demo.incidents import HOSTILE
from console.report.document import (
    BarChart,
    Block,
    Document,
    Event,
    FactList,
    Heading,
    Notes,
    Paragraph,
    Table,
    TrendChart,
    TwoLines,
)
from console.report.handover import hand_over
from console.report.html import write_html
from console.report.markdown import write_markdown
from console.testing.clock import FrozenClock
from tests.ui.world import NOON, small_world, with_trail

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ATTACKS = (
    *HOSTILE,
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</style><script>alert(1)</script>", "</title><svg/onload=1>",
    "\" onmouseover=\"alert(1)", "' onfocus='alert(1)' autofocus='", "<!-- --><iframe src='https://evil.example'>", "]]><b>",
    "&lt;script&gt;", "&#60;script&#62;", "javascript:alert(1)", "[x](javascript:alert(1))", "![x](https://evil.example/p.png)",
    "<https://evil.example>", "https://evil.example/?q=1", "www.evil.example", "`code` ``", "| a | b |\n|---|---|", "# heading",
    "- item", "1. item", "> quote", "***", "~~~", "<details open ontoggle=alert(1)>", "@import url(https://evil.example)",
    "\ud800 lone", "{{template}} ${shell} <%= erb %>", "\u2028 line \u2029 paragraph", "<math><mi xlink:href='javascript:1'>",
)
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "dl", "dt", "dd", "ul", "li", "span", "table", "thead",
    "tbody", "tr", "th", "td", "figure", "figcaption", "svg", "line", "text", "polygon", "polyline", "circle", "rect",
}
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "viewBox", "width", "height", "role", "aria-label", "x1", "y1",
    "x2", "y2", "x", "y", "text-anchor", "points", "cx", "cy", "r",
}


def hostile_blocks() -> Iterator[Block]:
    trend = Trend(NOW - 3 * HOUR, HOUR, (3, None, 5))
    for text in ATTACKS:
        yield Heading(2, text)
        yield Paragraph(text, warning=True)
        yield FactList([(text, text)])
        yield Notes([(text, text, text)])
        rows = [(text, trend), (text, None), (TwoLines(text, text, strong=True), "")]
        yield Table((text, text), rows, frozenset({1}), frozenset({0}))
        yield TrendChart(text, trend, [Event(NOW - HOUR, text)])
        yield BarChart(text, Histogram(NOW, HOUR, (1, 0, 7)))


def html_of(document: Document) -> str:
    out = StringIO()
    write_html(document, out)
    return out.getvalue()


def require_harmless(text: str) -> None:
    """Parsed as a browser parses it: only elements and attributes that can do nothing, and no address anywhere."""
    parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
    tree: ElementTree.Element = parser.parse(text)
    for element in tree.iter():
        name = str(element.tag).rpartition("}")[2]
        assert name in ALLOWED, name
        assert set(element.attrib) <= ATTRIBUTES, element.attrib
    style = "".join(tree.find("head/style").itertext())  # type: ignore[union-attr]
    assert not re.search(r"url\s*\(|@import|expression|https?:", style)
    policy = tree.find("head/meta[@http-equiv='Content-Security-Policy']")
    assert policy is not None
    assert "default-src 'none'" in policy.attrib["content"]
    text.encode("utf-8")


def test_hostile_text_stays_text_in_html() -> None:
    text = html_of(Document("</title><script>alert(1)</script>", hostile_blocks()))
    require_harmless(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b\u2028]", text)


def test_hostile_text_stays_text_in_markdown() -> None:
    out = StringIO()
    write_markdown(Document("x", hostile_blocks()), out)
    text = out.getvalue()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u200b\u2028]", text)
    assert "<" not in text
    assert not re.search(r"(?<!\\)\]\(", text)  # no link or image
    assert not re.search(r"https?://|www\.", text)
    for line in text.splitlines():
        if line.startswith("|") and "---" not in line:
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, line


def test_a_gap_stays_empty_in_a_chart() -> None:
    values = (1, 2, None, None, 5, None, 7)
    text = html_of(Document("x", [TrendChart("x", Trend(NOW, HOUR, values))]))
    assert (text.count("<polyline"), text.count("<circle")) == (1, 2)


def test_an_empty_report_is_valid() -> None:
    blocks: list[Block] = [
        TrendChart("x", Trend(NOW, HOUR, (None, None))), TrendChart("y", Trend(NOW, HOUR, (0,))), FactList([]), Notes([]),
        BarChart("z", Histogram(NOW, HOUR, (0, 0))), Table(("a",), []),
    ]
    require_harmless(html_of(Document("", blocks)))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo") / "w"
    with ExitStack() as stack:
        built = open_demo(DemoOptions(str(folder), 400), lambda *_: None, stack)
        yield str(built.config)


def test_the_hand_over_of_the_demo(world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "handover.html"
    assert main(["--config", world, "report", "--since", "12h", "--output", str(target)]) == 0
    text = target.read_text()
    require_harmless(text)
    for said in ("regressed, had been resolved by cy", "Acknowledged by bo", "OPS-1412", "billing v2.7.1", "Upcoming retries"):
        assert said in text
    assert target.stat().st_mode & 0o077 == 0
    assert main(["--config", world, "report", "--since", "12h", "--output", str(target)]) == 2  # never overwritten
    capsys.readouterr()
    assert main(["--config", world, "report", "--format", "markdown"]) == 0
    assert "# Hand-over, 12h" in capsys.readouterr().out
    for wrong in ("1m", "31d", "soon"):
        assert main(["--config", world, "report", "--since", wrong]) == 2


def test_the_report_about_an_override(world: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--config", world, "requeue", "--where", "backend:payments condition:terminal", "--limit", "5", "--reason",
          "<script>alert(1)</script>", "--confirm", "5"])
    capsys.readouterr()
    main(["--config", world, "overrides", "list", "--format", "jsonl"])
    override = json.loads(capsys.readouterr().out.splitlines()[0])["override_id"]
    target = tmp_path / "audit.html"
    assert main(["--config", world, "report", override, "--output", str(target)]) == 0
    text = target.read_text()
    require_harmless(text)
    assert "&lt;script&gt;alert(1)" in text
    assert "Intact:" in text
    assert "Chain head" in text
    assert text.count("payments/") >= 5
    assert main(["--config", world, "--read-only", "report", override]) == 0
    assert main(["--config", world, "report", "o000"]) == 2


def test_what_waits_is_open_whenever_it_began(tmp_path: Path) -> None:
    """A proposal, and an override that nobody carries out, are handed over even if they are older than the shift."""
    given = with_trail(small_world(tmp_path, 60, clock=FrozenClock(NOON)), tmp_path)
    operations, approvals = given.operations, given.approvals
    assert operations is not None
    assert approvals is not None
    one = Matching(Filter.parse("condition:terminal error~limit backend:analysis-queue"), limit=1)
    queued = operations.propose(one, Operation())
    override = operations.carry_out(queued, Confirmation(given.who, given.origin, "tonight", 1), detached=True)
    proposal = approvals.submit(operations.propose(one, Operation()), "provider is <b>back</b>")
    later = NOON + timedelta(hours=13)
    text = html_of(hand_over(given, Snapshot(later), later - timedelta(hours=12)))
    assert f"Override {override.override_id} of {given.who} is queued" in text
    assert f"Proposal {proposal.plan_id} of {given.who} waits for approval until" in text
    assert "requeue 1 item. provider is &lt;b&gt;back&lt;/b&gt;" in text


def test_a_broken_trail_is_said_at_the_top(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 60, clock=FrozenClock(NOON)), tmp_path)
    assert given.trail is not None
    given.trail.refuse({"why": "not permitted"}, NOON)
    given.trail.refuse({"why": "not permitted"}, NOON)
    assert "The trail is broken" not in html_of(hand_over(given, Snapshot(NOON), NOON - HOUR))
    with closing(sqlite3.connect(tmp_path / "state" / "trail.db")) as trail, trail:
        trail.execute("DROP TRIGGER record_no_update")
        trail.execute("UPDATE record SET body = replace(body, 'not ', '') WHERE seq = 1")
    text = html_of(hand_over(given, Snapshot(NOON), NOON - HOUR))
    assert "The trail is broken: record 1:" in text
    assert text.index("The trail is broken") < text.index("Open")


@pytest.fixture
def browser(tmp_path: Path) -> list[str]:
    """The command of a real browser, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium on this machine; the parser tests cover the same file")
    return [found, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]


def printed(browser: list[str], page: Path) -> bytes:
    pdf = page.with_suffix(".pdf")
    subprocess.run([*browser, f"--print-to-pdf={pdf}", page.as_uri()], capture_output=True, timeout=120, check=True)
    return pdf.read_bytes()


@pytest.mark.campaign
def test_the_hand_over_of_the_demo_is_a_few_pages_on_paper(world: str, tmp_path: Path, browser: list[str]) -> None:
    """Errors have a wide column: one letter on each line would make it eleven pages."""
    page = tmp_path / "handover.html"
    assert main(["--config", world, "report", "--since", "12h", "--output", str(page)]) == 0
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed(browser, page))) <= 5


@pytest.mark.campaign
def test_a_browser_runs_and_fetches_nothing(tmp_path: Path, browser: list[str]) -> None:
    """A canary script would leave its mark in the printed page title."""
    page = tmp_path / "report.html"
    page.write_text(html_of(Document("report", hostile_blocks())))
    log = tmp_path / "net.json"
    command = [
        *browser, f"--log-net-log={log}", "--virtual-time-budget=3000", "--disable-background-networking", "--dump-dom",
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "<script" not in done.stdout.replace("&lt;script", "")
    assert "evil.example" not in "".join(re.findall(r'"url":"([^"]*)"', log.read_text()))
    assert printed(browser, page).startswith(b"%PDF")
