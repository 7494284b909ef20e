"""Checks Prometheus's configuration, Grafana's provisioning and our dashboards. Asks no server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from prism_ray.validate.promql import results, unresolved
from prism_ray.validate.report import Report


def check_prometheus(document: Mapping[str, Any], report: Report) -> None:
    """A ``prometheus.yml``: jobs with names of their own that find their targets somewhere."""
    jobs = document["scrape_configs"]
    if not isinstance(jobs, list) or not jobs:
        report.refuse("scrape_configs", "a list of jobs", jobs)
        return
    seen: set[str] = set()
    for index, job in enumerate(jobs):
        path = f"scrape_configs.{index}"
        if not isinstance(job, Mapping):
            report.refuse(path, "a mapping", job)
            continue
        name = job.get("job_name")
        if not isinstance(name, str) or name in seen:
            report.refuse(f"{path}.job_name", "a name of its own", name)
        else:
            seen.add(name)
        if not any(job.get(key) for key in job if str(key).endswith(("_sd_configs", "_configs"))):
            report.refuse(path, "static_configs or some …_sd_configs", sorted(map(str, job)))


def check_provisioning(document: Mapping[str, Any], report: Report) -> None:
    """A file of Grafana's ``provisioning/``: data sources or providers of dashboards."""
    needed = {"datasources": ("name", "type", "url"), "providers": ("name", "options")}
    for key, fields in needed.items():
        rows = document.get(key)
        if rows is None:
            continue
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            report.refuse(key, "a list of mappings", rows)
            continue
        for index, row in enumerate(rows):
            for name in fields:
                if not row.get(name):
                    report.refuse(f"{key}.{index}.{name}", "a value", row.get(name))


def check_dashboard(document: Mapping[str, Any], report: Report) -> None:
    """A Grafana dashboard: every expression names series that the application has."""
    from prism_ray.serving.exposition import series

    known = series()
    if not document["panels"]:
        report.refuse("panels", "at least one panel", document["panels"])
    for path, target in targets(document):
        expression = target["expr"]
        problems = list(unresolved(expression, known))
        for problem in problems:
            report.refuse(path, f"what the application exposes ({problem})", expression)
        if problems:
            continue
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")):
            if label not in results(expression, known):
                report.refuse(f"{path}.legendFormat", "labels of the expression's result", label)


def targets(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Everything with an ``expr``, each with its path; a variable's query counts as one."""
    for index, panel in enumerate(document["panels"]):
        for number, target in enumerate(panel.get("targets", ())):
            yield f"panels.{index}.targets.{number}", target
    for index, variable in enumerate(document.get("templating", {}).get("list", ())):
        if variable.get("type") == "query":
            yield f"templating.list.{index}", {"expr": variable["query"]}
