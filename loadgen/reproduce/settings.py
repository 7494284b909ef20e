"""What is served in a reproduction: traces, machines and readings under short names. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.simulate import SimSpec, kept_knee

MODELS = {"4b": "a800-qwen3-4b", "13b": "a800-llama2-13b"}
KNEE_LOADS = (1.0, 1.1, 1.25, 1.5)
PAPER_RATES = {"4b": (40.0, 50.0, 60.0, 70.0, 80.0), "13b": (10.0, 15.0, 20.0, 25.0, 30.0)}
"""Requests/s of the paper's main sweep (section 4.2)."""


@dataclass(frozen=True)
class Setting:
    """Everything that runs share that are compared: prompts, machine, replicas.

    ``says`` is for people; ``options`` are those of ``prism-loadgen simulate --set``.
    """

    name: str
    says: str
    options: Mapping[str, Any] = field(default_factory=dict)
    requests: int = 2048

    @property
    def base(self) -> SimSpec:
        return SimSpec(requests=self.requests).with_options(self.options)

    def knee_qps(self) -> float:
        """Raises UnknownKnee where none is kept."""
        base = self.base
        return kept_knee(base.trace, base.profile, base.replicas, base.trace_options)


def _rag(
    name: str, model: str, says: str, trace: str = "zipf_hotspot", **trace_options: Any
) -> Setting:
    options: dict[str, Any] = {"profile": MODELS[model], "trace": trace}
    options |= {f"trace.{key}": value for key, value in trace_options.items()}
    return Setting(f"{name}-{model}", f"{says}; {MODELS[model]}", options)


def _all() -> list[Setting]:
    made = []
    for model in MODELS:
        made += [
            _rag("paper", model, "the paper's trace: 3 of 5 slots hot, system prefix 214"),
            _rag(
                "reading-c",
                model,
                "1 to 5 slots hot, uniformly; system prefix 294",
                reading="c",
                system_tokens=294,
            ),
            _rag("reading-a", model, "one slot of a hot request is hot", reading="a"),
            _rag("prefix-270", model, "3 of 5 slots hot, system prefix 270", system_tokens=270),
            _rag("multihop", model, "real MultiHop-RAG retrieval lists", "multihop-rag"),
        ]
    small = {"engine.pool_tokens": 50_000}
    made.append(_rag("hotpotqa", "4b", "real HotpotQA lists, which share nothing", "hotpotqa"))
    made.append(Setting("small-pool-4b", "the paper's trace; a pool of 50,000 tokens", small))
    agents = {"trace": "agent_prefix"}
    made.append(Setting("agents-4b", "recorded agent runs, not reordered", agents))
    made.append(
        Setting(
            "agents-small-pool-4b",
            "recorded agent runs, not reordered; a pool of 100,000 tokens",
            agents | {"engine.pool_tokens": 100_000},
        )
    )
    for share in (0.3, 0.5, 0.9):
        made.append(_rag(f"hot-rate-{share}", "4b", f"hot-request rate {share}", hot_rate=share))
    for alpha in (0.8, 1.0, 1.4):
        made.append(_rag(f"zipf-{alpha}", "4b", f"Zipf exponent {alpha}", zipf=alpha))
    for slots in (3, 8):
        made.append(_rag(f"top-{slots}", "4b", f"{slots} passages a request", slots=slots))
    made.append(
        Setting("steady-4b", "the paper's trace, 20,000 requests; a800-qwen3-4b", requests=20_000)
    )
    made.append(
        Setting(
            "toolbench-x4",
            "ToolBench lengths, tools by Zipf 1.1, four replicas of a800-qwen3-4b",
            {"trace": "toolbench", "trace.zipf": 1.1, "replicas": 4},
            requests=4000,
        )
    )
    return made


SETTINGS: dict[str, Setting] = {setting.name: setting for setting in _all()}
