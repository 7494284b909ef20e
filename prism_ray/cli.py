"""The ``prism-ray`` command line. Commands live with what they command and load when called."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version

import click

COMMANDS = {
    "explain": "prism_ray.serving.explain_command:explain_command",
    "fetch-model": "prism_ray.engine.checkpoints.smollm2:fetch_model",
    "serve": "prism_ray.serving.serve_command:serve_command",
    "top": "prism_ray.top:top_command",
    "validate": "prism_ray.cli:validate_command",
    "version": "prism_ray.cli:version_command",
}
"""Command name to ``module:attribute``."""


class LazyGroup(click.Group):
    """Imports a command's module only when that command (or the list of all) is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Online LLM serving for prompts that share text."""


@click.command("version")
def version_command() -> None:
    """Print the versions of prism_ray and of what it runs on."""
    for package in ("prism-ray", "ray", "sglang"):
        try:
            click.echo(f"{package} {version(package)}")
        except PackageNotFoundError:
            click.echo(f"{package} not installed")


@click.command("validate")
@click.argument("sources", nargs=-1, required=True, metavar="FILE-OR-PRESET...")
@click.option(
    "--engine-args",
    is_flag=True,
    help="Also build SGLang's own ServerArgs, and print how many tokens the KV pool holds.",
)
@click.option(
    "--gpu-gib",
    type=click.FloatRange(min=0, min_open=True),
    default=80.0,
    show_default=True,
    help="Memory of one GPU for the pool's size.",
)
def validate_command(sources: tuple[str, ...], engine_args: bool, gpu_gib: float) -> None:
    """Check configs, Serve configs and the files of a cluster; exit 1 if any is wrong.

    The cluster's: Ray cluster configs, KubeRay RayServices, compose files, Redis settings, Dockerfiles.
    """
    from prism_ray.validate import validate

    wrong = 0
    for report in (report for source in sources for report in validate(source)):
        wrong += len(report.problems)
        click.echo(f"{report.source}: {report.kind}: {'ok' if report.ok else 'wrong'}")
        for problem in report.problems:
            click.echo(f"  error: {problem}")
        for note in report.notes:
            click.echo(f"  {note}")
        for path, config in report.configs.items():
            click.echo(
                f"  {path}: max_ongoing_requests ingress {config.ingress_max_ongoing_requests:,}, "
                f"replica {config.replica_max_ongoing_requests:,}"
            )
            if engine_args:
                wrong += _report_engine_args(config, gpu_gib)
    raise SystemExit(1 if wrong else 0)


def _report_engine_args(config: object, gpu_gib: float) -> int:
    from prism_ray.config import PrismConfig
    from prism_ray.engine_check import check_engine_args

    assert isinstance(config, PrismConfig)
    found = check_engine_args(config, gpu_gib)
    for problem in found.problems:
        click.echo(f"  error: {problem}")
    if found.pool is not None:
        click.echo(f"  KV pool: {found.pool.tokens:,} tokens = {found.pool.formula}")
        shortfall = (found.resolved.get("context_length") or 0) - found.pool.tokens
        if shortfall > 0:
            click.echo(f"  note: context_length exceeds the pool by {shortfall:,} tokens")
    for item in found.unchecked:
        click.echo(f"  unchecked: {item}")
    return len(found.problems)
