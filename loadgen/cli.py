"""The command line `prism-loadgen`: says which commands there are; each lives in its own module."""

from __future__ import annotations

import click

from loadgen.lazy import LazyGroup

COMMANDS = {
    "answers": "loadgen.quality.command:answers",
    "compare": "loadgen.compare.command:compare",
    "measure": "loadgen.measure:measure",
    "plan": "loadgen.plan.command:plan",
    "profile": "loadgen.real.profile:profile",
    "report": "loadgen.report.command:report",
    "reproduce": "loadgen.reproduce.command:reproduce",
    "run": "loadgen.run:run",
    "simulate": "loadgen.simulate.command:simulate",
    "sweep": "loadgen.sweep.command:sweep",
    "trace": "loadgen.trace_cmd:trace",
    "validate": "loadgen.validate.command:validate",
}
BENCHES = {
    "cluster": "loadgen.bench.cluster:cluster",
    "generator": "loadgen.bench.generator:generator",
    "hot-document": "loadgen.bench.hot_document:hot_document",
    "memory": "loadgen.bench.memory:memory",
    "path": "loadgen.bench.path:path",
    "placement": "loadgen.bench.placement:placement",
    "residency": "loadgen.bench.residency:residency",
    "retention": "loadgen.bench.retention:retention",
    "scheduler": "loadgen.bench.scheduler:scheduler",
    "server": "loadgen.bench.server:server",
    "tree": "loadgen.bench.tree:tree",
}


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="prism-ray")
def main() -> None:
    """Load, traces and measurements for prism_ray and other OpenAI-compatible servers."""


@main.group(cls=LazyGroup, lazy=BENCHES)
def bench() -> None:
    """Measure one part of the system by itself."""


if __name__ == "__main__":
    main()
