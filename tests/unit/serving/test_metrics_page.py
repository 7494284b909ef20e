"""The page of metrics names every series that there is."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from prism_ray.serving.exposition import REPLICA_GAUGES, prometheus_text
from prism_ray.serving.meters import FAMILIES, Counts

from .test_meters import STATE

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_every_series_is_on_the_page_and_nothing_else() -> None:
    told = set(re.findall(r"`(prism_\w+)`", PAGE.read_text()))
    text = prometheus_text(Counts(), STATE).decode()
    exposed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in text_string_to_metric_families(text)
    }
    assert exposed >= {*FAMILIES, *(f"prism_replica_{name}" for name in REPLICA_GAUGES)}
    assert told == exposed
