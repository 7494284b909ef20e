"""The live page: one valid document that shows everything, runs one script and no client's text."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from loadgen.bench.scheduler import ColdCache
from prism_ray.model import NO_GAP, Segment, Skeleton, Ticket
from prism_ray.policies import make_scheduler
from prism_ray.scheduling import Scheduler
from prism_ray.telemetry import live_page
from prism_ray.telemetry.live_page import HEADERS, page, unavailable
from prism_ray.telemetry.live_page_chart import nice_top_s, svg
from prism_ray.telemetry.live_page_view import Chart, Span, view_of
from prism_ray.telemetry.live_page_words import printable, seconds

from .live_states import decision, replica, several_tenants, state

VOID = {"meta", "link", "br", "hr", "img", "input"}
ATTACK = '</td><script>alert("1")</script><img src=x onerror=alert(2)>'


def sent_to(policy: str, *replicas: str) -> Scheduler:
    """A scheduler that gave each replica one request of two shared segments."""
    scheduler = make_scheduler(policy)
    segments = tuple(Segment(name, 40, label=f"<b>{name.decode()}") for name in (b"a", b"b"))
    skeleton = Skeleton(None, segments, (NO_GAP, NO_GAP), 5)
    for replica_name in replicas:
        scheduler.add(Ticket(f"to {replica_name}", skeleton, 0.0))
        opened = scheduler.open_round({replica_name: ColdCache()})
        pick = opened.peek(replica_name)
        assert pick is not None
        opened.take(replica_name, pick)
        opened.close()
    return scheduler


class Document(HTMLParser):
    """What a page is made of; AssertionError if an element is closed that is not the open one."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert len({name for name, _ in attrs}) == len(attrs), f"doubled attribute in {tag}"
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


class TestDocument:
    @pytest.mark.parametrize("replicas", [1, 64])
    def test_it_shows_everything_of_every_replica(self, replicas: int) -> None:
        document = Document(page(state(replicas)))
        words = document.words
        for number in range(replicas):
            assert f"replica-{number:02} yes" in words
            assert f"{12_345 + number:,}" in words
        for part in (
            "policy qas", "placement e2", "waiting 41", "the oldest for 12.5 s",
            "hot lane 66.7 % 20 of 30 in 50 s", "cold lane 33.3 %", "64.0 %",
            "100,000 / 400,000", "exact", "paris 3 21 11", "55.5", "bucket of 3",
            "250 ms", "320", "Time to first token", "Queue wait",
        ):  # fmt: skip
            assert part in words, part
        assert document.tags.count("table") == 5
        assert document.tags.count("svg") == 2
        assert len(set(document.ids)) == len(document.ids)

    def test_it_is_one_html_document(self) -> None:
        html = page(state())
        assert html.lstrip().lower().startswith("<!doctype html>")
        document = Document(html)
        for tag in ("html", "head", "title", "body", "main"):
            assert document.tags.count(tag) == 1, tag

    def test_it_loads_nothing_from_anywhere(self) -> None:
        html = page(state(2))
        assert not re.search(r"https?:|//[a-z]|@import|url\(", html.replace("\n// ", ""))
        links = {value for _, name, value in Document(html).attributes if name in ("src", "href")}
        assert links == {"state", "../metrics", "explain/ab12cd34"}

    def test_without_scripts_the_browser_refreshes_it(self) -> None:
        refresh = '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        assert refresh in page(state(), refresh_s=5)
        assert 'data-refresh="5"' in page(state(), refresh_s=5)
        assert "http-equiv" not in page(state(), refresh_s=0)

    def test_while_no_scheduler_answers_it_says_so_and_looks_again(self) -> None:
        html = unavailable(2)
        document = Document(html)
        assert "No scheduler answers" in document.words
        assert document.tags.count("main") == 1
        assert 'http-equiv="refresh"' in html


class TestSafety:
    def test_what_clients_name_is_never_markup(self) -> None:
        attacked = state(1)
        attacked["window"]["segments"][0]["label"] = ATTACK
        attacked["window"]["buckets"][0]["signature"] = [ATTACK, "x"]
        attacked["window"]["fronts"][0]["front"] = [ATTACK, "x"]
        attacked["decisions"] = [decision(f"{ATTACK}/../x", reason=ATTACK)]
        attacked["replicas"] = [replica(0, replica=ATTACK, model=ATTACK)]
        plain, document = Document(page(state(1))), Document(page(attacked))
        assert sorted(document.tags) == sorted(plain.tags)
        assert document.scripts == plain.scripts == [live_page.SCRIPT]
        assert not [name for _, name, _ in document.attributes if name.startswith("on")]
        assert document.words.count(ATTACK) >= 5, "it is shown as it is"
        (link,) = [v for _, n, v in document.attributes if n == "href" and v.startswith("explain")]
        assert "/" not in link.removeprefix("explain/")

    def test_only_the_pages_own_script_may_run(self) -> None:
        digest = hashlib.sha256(Document(page(state())).scripts[0].encode()).digest()
        policy = HEADERS["Content-Security-Policy"].split("; ")
        assert policy[:3] == [
            "default-src 'none'",
            "style-src 'unsafe-inline'",
            f"script-src 'sha256-{base64.b64encode(digest).decode()}'",
        ]
        assert "frame-ancestors 'none'" in policy
        assert HEADERS["Cache-Control"] == "no-store"

    def test_what_no_screen_should_get_is_replaced(self) -> None:
        assert printable("a\x1b[2Jb\u202ec\ud800é字 d") == "a\ufffd[2Jb\ufffdc\ufffdé字 d"
        odd = state()
        odd["window"]["segments"][0]["label"] = "\ud800"
        page(odd).encode()


class TestTenants:
    def test_of_several_tenants_it_shows_neither_segments_nor_decisions(self) -> None:
        view = view_of(several_tenants())
        assert [table.key for table in view.tables] == ["replicas"]
        words = Document(page(several_tenants())).words
        assert "Several tenants are known" in words
        assert "tenants 3" in words
        assert "paris" not in words

    def test_decisions_that_came_along_are_not_shown_either(self) -> None:
        leaky = several_tenants() | {"decisions": [decision()]}
        assert "ab12cd34" not in page(leaky)


class TestStates:
    def test_of_a_reason_the_numbers_that_were_compared_stand_apart(self) -> None:
        reason = "hot lane: score 7; spill to a (cached_tokens 612, load_s 1.2)"
        shown = state(1) | {"decisions": [decision(reason=reason)]}
        (row,) = view_of(shown).tables[-1].rows
        assert (row[-1].text, row[-1].more) == (
            "hot lane: score 7; spill to a",
            "cached tokens 612, load s 1.2",
        )
        assert row[-1].full == reason
        odd = state(1) | {"decisions": [decision(reason="labels (may) have brackets")]}
        assert view_of(odd).tables[-1].rows[0][-1].text == "labels (may) have brackets"

    def test_a_policy_without_segments_or_lanes_has_no_such_tables(self) -> None:
        window = {"policy": "fcfs", "queued": 2, "active": 1}
        view = view_of(state(window=window))
        assert [table.key for table in view.tables] == ["replicas", "decisions"]
        assert not [fact for fact in view.facts if "lane" in fact.name]
        Document(page(state(window=window)))

    @pytest.mark.parametrize("policy", ["prism", "qas"])
    def test_our_own_policies_show_their_segments_and_lanes(self, policy: str) -> None:
        scheduler = sent_to(policy, "replica-00")
        html = page(state(1, window=scheduler.describe()))
        assert "&lt;b&gt;a" in html
        keys = [table.key for table in view_of(state(1, window=scheduler.describe())).tables]
        assert "segments" in keys

    @pytest.mark.parametrize("policy", ["prism", "qas"])
    def test_every_replica_has_its_own_lanes_however_few_rows_are_asked_for(
        self, policy: str
    ) -> None:
        scheduler = sent_to(policy, *(f"replica-{number:02}" for number in range(63)))
        rows = view_of(state(64, window=scheduler.describe(top=1))).tables[0].rows
        sent = [(row[5].text, row[6].text) for row in rows]
        assert len(sent) == 64
        assert all(sorted(lanes) == ["0", "1"] for lanes in sent[:63])
        assert sent[63] == ("–", "–"), "nothing is known of the last one"

    def test_a_front_has_who_waits_for_it_and_what_it_saves(self) -> None:
        shown = state(1)
        (table,) = [table for table in view_of(shown).tables if table.key == "fronts"]
        (row,) = table.rows
        assert [cell.text for cell in row] == ["paris › rome", "6", "800", "4,321", "2"]
        assert row[3].part == 1.0
        shown["window"]["fronts"] = []
        assert "nothing that waits shares a front" in Document(page(shown)).words

    def test_a_replica_has_its_share_of_what_waits(self) -> None:
        (_, row) = view_of(state(2)).tables[0].rows
        assert row[3].text == "60"

    def test_while_nothing_waits_and_nothing_was_decided_there_are_no_numbers_of_it(self) -> None:
        idle = state(1, waiting=0, oldest_wait_s=None)
        idle["recent"]["all"]["lanes"] = {"hot": 0, "cold": 0}
        facts = {fact.name: fact for fact in view_of(idle).facts}
        assert facts["waiting"].more == "in the window"
        assert facts["hot lane"].text == "–"

    def test_a_replica_that_reported_nothing_yet_has_dashes(self) -> None:
        names = ("pool_used_tokens", "running", "engine_waiting", "hit_rate")
        fresh = replica(0, **dict.fromkeys(names), draining=True)
        (row,) = view_of(state(replicas=1) | {"replicas": [fresh]}).tables[0].rows
        assert [cell.text for cell in row[9:14]] == ["–", "–", "– / 400,000", "70,000", "–"]
        assert row[1].tone == "warn"
        assert row[11].part is None

    def test_without_replicas_and_requests_it_says_so(self) -> None:
        empty = state(replicas=0) | {"replicas": [], "decisions": []}
        empty["window"] = {"segments": [], "buckets": [], "lanes": {}}
        words = Document(page(empty)).words
        for part in ("no replica has joined", "nothing is reused now", "nothing waits"):
            assert part in words


class TestChart:
    def test_steps_are_drawn_and_gaps_stay_gaps(self) -> None:
        spans = (
            Span(40.0, 30.0, (0.5, 1.0)),
            Span(30.0, 20.0, (0.25, 1.0)),
            Span(20.0, 10.0, (None, None)),
            Span(10.0, 0.0, (0.0, 0.5)),
        )
        plot = ElementTree.fromstring(
            svg(Chart("k", "T <1>", "c & d", ("mean", "P95"), 40.0, spans))
        )
        paths = {p.get("class"): p.get("d") for p in plot.iter("path")}
        assert paths["line line0"] == "M0.0 68.0H150.0L150.0 92.0H300.0M450.0 116.0H600.0"
        assert paths["line line1"] == "M0.0 20.0H150.0L150.0 20.0H300.0M450.0 68.0H600.0"
        assert paths["area"] == (
            "M0.0 68.0H150.0L150.0 92.0H300.0L300.0 116H0.0ZM450.0 116.0H600.0L600.0 116H450.0Z"
        )
        (drawing,) = plot.iter("svg")
        assert drawing.get("aria-label") == "T <1>: c & d"
        assert [span.text for span in plot.iter("span")] == ["1 s", "500 ms", "40 s ago", "now"]

    @pytest.mark.parametrize(
        ("oldest_s", "span_s"), [(3.0, 60.0), (61.0, 120.0), (290.0, 300.0), (301.0, 600.0)]
    )
    def test_a_young_application_fills_its_charts(self, oldest_s: float, span_s: float) -> None:
        young = state()
        steps = young["recent"]["steps"][-1:]
        young["recent"]["steps"] = [steps[0] | {"begin_age_s": oldest_s}]
        assert {chart.span_s for chart in view_of(young).charts} == {span_s}

    @pytest.mark.parametrize(
        ("most_s", "top_s"), [(0.0, 0.001), (0.0011, 0.002), (0.3, 0.5), (1.0, 1.0), (70.0, 100.0)]
    )
    def test_the_scale_ends_at_a_round_number(self, most_s: float, top_s: float) -> None:
        assert nice_top_s(most_s) == pytest.approx(top_s)

    def test_seconds_have_the_unit_that_suits(self) -> None:
        shown = [seconds(s) for s in (None, 0.0004, 0.043, 0.9999, 1.25, 600.0)]
        assert shown == ["–", "0.4 ms", "43 ms", "1 s", "1.25 s", "10 min"]
