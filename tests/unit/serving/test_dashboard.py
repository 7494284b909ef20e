"""The dashboard asks only for what ``/metrics`` exposes, and shows all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prism_ray.serving.exposition import prometheus_text, series
from prism_ray.serving.meters import FAMILIES, Counts, Meters
from prism_ray.validate import validate_document
from prism_ray.validate.monitoring import targets
from prism_ray.validate.promql import named, results, unresolved

from .test_meters import STATE

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "cluster" / "grafana" / "prism.json").read_text()
)
KNOWN = {
    "a_total": frozenset({"lane"}),
    "b_total": frozenset({"lane", "kind"}),
    "c_bucket": frozenset({"lane", "le"}),
}


def everything_counted() -> Counts:
    """Something in every family, so that every series has a sample."""
    meters = Meters()
    for name, family in FAMILIES.items():
        values = ["x"] * len(family.labels)
        (meters.observe if family.buckets else meters.add)(name, 1, *values)
    meters.take()
    return meters.total


def test_the_list_of_series_is_what_is_exposed() -> None:
    text = prometheus_text(everything_counted(), STATE).decode()
    exposed: dict[str, frozenset[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert exposed.setdefault(sample.name, frozenset(sample.labels)) == frozenset(
                    sample.labels
                )
    assert exposed == series()


def test_every_expression_names_series_and_labels_that_are_exposed() -> None:
    asked = list(targets(DASHBOARD))
    assert len(asked) > 30
    for path, target in asked:
        assert list(unresolved(target["expr"], series())) == [], path


def test_every_metric_is_on_the_dashboard() -> None:
    asked = {name for _, target in targets(DASHBOARD) for name in named(target["expr"]).series}
    missing = {
        name
        for name in series()
        if not asked & {name, *(name.removesuffix(s) + "_bucket" for s in ("_sum", "_count"))}
    }
    assert missing == set()


def test_panels_neither_overlap_nor_leave_the_page() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


class TestExpressions:
    @pytest.mark.parametrize(
        "expression",
        [
            "a_total",
            'sum by (lane) (rate(a_total{lane=~"$lane"}[$__rate_interval])) / 2',
            "1 - sum(rate(a_total[5m])) / sum(rate(b_total[500ms]))",
            "histogram_quantile(0.99, sum by (le, lane) (rate(c_bucket[1m])))",
            "label_values(b_total, kind)",
        ],
    )
    def test_what_is_there_resolves(self, expression: str) -> None:
        assert list(unresolved(expression, KNOWN)) == []

    @pytest.mark.parametrize(
        ("expression", "problem"),
        [
            ("d_total", "no series d_total"),
            ("sum(rate(a_total[5m])) / sum(rate(d_total[5m]))", "no series d_total"),
            ('a_total{kind="x"}', "a_total has no label kind"),
            ("sum by (kind) (a_total)", "a_total has no label kind"),
            ("sum by (kind) (b_total) / sum by (kind) (a_total)", "a_total has no label kind"),
            ("label_values(a_total, kind)", "a_total has no label kind"),
            ("histogram_quantile(0.5, rate(c_bucket[1m]))", "c_bucket is summed over its buckets"),
            ("sum(c_bucket)", "c_bucket is summed over its buckets"),
        ],
    )
    def test_what_is_not_there_is_named(self, expression: str, problem: str) -> None:
        assert list(unresolved(expression, KNOWN)) == [problem]

    @pytest.mark.parametrize(
        "expression",
        ["", "1 + 2", "rat(a_total[5m])", "a_total{lane", '{lane="x"}', "a_total ? 1", "sum by ()"],
    )
    def test_what_is_no_expression_of_the_subset_is_refused(self, expression: str) -> None:
        with pytest.raises(ValueError, match=r" in '"):
            named(expression)

    def test_an_aggregate_has_the_labels_that_it_groups_by(self) -> None:
        assert results("sum by (kind) (b_total)", KNOWN) == {"kind"}
        assert results("sum(b_total)", KNOWN) == frozenset()
        assert results("a_total / b_total", KNOWN) == {"lane"}
        assert results("histogram_quantile(0.5, sum by (le) (c_bucket))", KNOWN) == frozenset()


class TestDocuments:
    @pytest.mark.parametrize(
        ("target", "path"),
        [
            ({"expr": "prism_round_total"}, "panels.0.targets.0"),
            (
                {"expr": "sum(prism_rounds_total)", "legendFormat": "{{lane}}"},
                "panels.0.targets.0.legendFormat",
            ),
        ],
    )
    def test_a_dashboard_that_asks_for_what_is_not_there_is_refused(
        self, target: dict[str, str], path: str
    ) -> None:
        report = validate_document({"panels": [{"targets": [target]}]}, "file")
        assert [problem.path for problem in report.problems] == [path]

    @pytest.mark.parametrize(
        ("document", "path"),
        [
            ({"scrape_configs": []}, "scrape_configs"),
            (
                {"scrape_configs": [{"static_configs": [{"targets": ["a:1"]}]}]},
                "scrape_configs.0.job_name",
            ),
            ({"scrape_configs": [{"job_name": "a"}]}, "scrape_configs.0"),
            ({"datasources": [{"name": "a", "type": "prometheus"}]}, "datasources.0.url"),
            ({"providers": [{"name": "a"}]}, "providers.0.options"),
            ({"panels": []}, "panels"),
        ],
    )
    def test_what_a_server_would_not_take_is_refused(
        self, document: dict[str, Any], path: str
    ) -> None:
        report = validate_document(document, "file")
        assert [problem.path for problem in report.problems] == [path]
