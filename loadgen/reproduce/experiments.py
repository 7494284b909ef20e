"""Which runs a reproduction is made of: experiments as settings x arms x rates x seeds. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadgen.reproduce.settings import KNEE_LOADS, PAPER_RATES, SETTINGS
from loadgen.sweep import Arm, Step, parse_arm, steps

FIRST_SEED = 200
"""No policy here was ever tuned on this seed or a later one."""
SEEDS = 5

ALIGNING_PEERS = ("front-alignment", "contextpilot")
SCREENED = (
    *ALIGNING_PEERS,
    "front-alignment policy.f_front=2",
    "front-alignment policy.f_front=4",
    "front-alignment policy.f_front=5",
    "contextpilot policy.batch_max=64",
    "contextpilot policy.batch_max=1024",
    "fcfs",
    "fcfs-refresh",
    "lpm",
    "lpm-uncapped",
    "hrrn",
    "dfs-weight",
    "k-lpm",
    "k-lpm policy.k=4",
    "preble-groups",
    "peek",
)
"""Every peer, with the parameters of the strongest varied: one seed says who is worth five."""
PAPERS = ("qas", "fcfs-refresh", "k-lpm", "contextpilot")
"""The paper's own table: PRISM, native SGLang, k-LPM, ContextPilot."""
MAIN = ("prism", "qas", *ALIGNING_PEERS, "fcfs")
COMPARED = tuple(
    f"{trace}-{model}" for trace in ("paper", "reading-c", "multihop") for model in ("4b", "13b")
)
"""Settings in which prism is compared with its peers."""
COLD = tuple(f"qas policy.q_cold={quota}" for quota in (0, 4, 8))
BATCHES = tuple(f"qas policy.batch_max={size}" for size in (8, 4))
"""The paper gives no batch size, and it decides what part of all dispatches q_cold is."""
WITHOUT = (
    "prism/lru policy.hints=false",
    "prism policy.pioneer=false",
    "prism policy.share=false",
    "prism policy.plan=false",
    "prism policy.order=match",
    "prism policy.order=match policy.overdue_share=0",
    "prism/dart",
)
PREBLE = (
    "fcfs placement=round-robin",
    "fcfs placement=e2 placement.spill=false placement.rebalance=false placement.replicate=false "
    "placement.decode_balance=false",
    "fcfs placement=e2 placement.spill=false placement.decode_balance=false",
    "fcfs placement=e2 placement.spill=false",
    "preble-groups placement=e2 placement.spill=false",
)
"""Preble's ablation (its figure 5): each with all before it."""
LABELS = {
    PREBLE[0]: "round robin",
    PREBLE[1]: "+ E2",
    PREBLE[2]: "+ rebalance, replicate",
    PREBLE[3]: "+ prefill/decode balance",
    PREBLE[4]: "+ priority groups",
    "prism/lru policy.hints=false": "without hints, lru",
    "prism policy.pioneer=false": "without pioneers",
    "prism policy.share=false": "each planned by itself",
    "prism policy.plan=false": "without a plan",
    "prism policy.order=match": "longest match first",
    "prism policy.order=match policy.overdue_share=0": "the same, no age bound",
    "prism policy.order=arrival": "oldest first",
    "prism/dart": "retention dart",
}
"""Of arms whose names are long, for people."""


@dataclass(frozen=True)
class Experiment:
    """Arms at rates in settings, all with the same ``seeds`` (how many, and from which on).

    ``loads`` are shares of the setting's knee, ``rates`` requests/s.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    arms: tuple[str, ...]
    loads: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    seeds: int = SEEDS
    first_seed: int = FIRST_SEED

    def steps(self) -> Iterator[tuple[str, Step]]:
        """(setting, run), seeds outermost. Raises UnknownKnee."""
        arms = [parse_arm(text) for text in self.arms]
        for seed in range(self.first_seed, self.first_seed + self.seeds):
            for name in self.settings:
                for step in self._of(name, arms, seed):
                    yield name, step

    def _of(self, name: str, arms: Sequence[Arm], seed: int) -> Iterator[Step]:
        setting = SETTINGS[name]
        knee = setting.knee_qps() if self.loads else None
        yield from steps(
            setting.base, arms, [seed], knee_qps=knee, loads=self.loads, rates=self.rates
        )


def _main() -> list[Experiment]:
    return [
        Experiment(f"main-{name}", f"prism and its peers: {name}", (name,), MAIN, loads=KNEE_LOADS)
        for name in COMPARED
    ]


SCREENING = Experiment(
    "screening",
    "Which peers are worth comparing with",
    COMPARED,
    SCREENED,
    loads=(1.1,),
    seeds=1,
    first_seed=FIRST_SEED - 1,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    *_main(),
    Experiment(
        "against-qas",
        "prism and qas at 1.2 of the knee",
        COMPARED,
        ("prism", "qas"),
        loads=(1.2,),
    ),
    Experiment(
        "no-sharing",
        "Where nothing is shared",
        ("hotpotqa-4b",),
        ("prism", "fcfs"),
        loads=(0.9, 1.2),
        seeds=10,
    ),
    Experiment(
        "ingredients",
        "What each ingredient of prism is worth",
        ("paper-4b", "paper-13b"),
        ("prism", *WITHOUT),
        loads=(1.25,),
    ),
    SCREENING,
    Experiment(
        "sweep-4b",
        "The paper's main sweep, Qwen3-4B",
        ("paper-4b",),
        (*PAPERS, "front-alignment", "prism"),
        rates=PAPER_RATES["4b"],
    ),
    Experiment(
        "sweep-13b",
        "The paper's main sweep, Llama2-13B",
        ("paper-13b",),
        (*PAPERS, "front-alignment", "prism"),
        rates=PAPER_RATES["13b"],
    ),
    Experiment(
        "batches-4b",
        "Smaller batches of qas, Qwen3-4B",
        ("paper-4b",),
        ("qas", *BATCHES),
        rates=PAPER_RATES["4b"],
    ),
    Experiment(
        "batches-13b",
        "Smaller batches of qas, Llama2-13B",
        ("paper-13b",),
        ("qas", *BATCHES),
        rates=PAPER_RATES["13b"],
    ),
    Experiment(
        "retention",
        "DART against other retentions under the same scheduler",
        ("paper-4b", "small-pool-4b"),
        ("qas", "qas/lru", "qas/lru+active", "qas/lfu"),
        rates=(60.0, 70.0, 80.0),
    ),
    Experiment(
        "cold-lane",
        "The cold lane's quota",
        ("paper-4b",),
        ("qas", *COLD),
        rates=PAPER_RATES["4b"],
    ),
    Experiment(
        "agents",
        "Agent prompts (AgentPrefix)",
        ("agents-4b",),
        (*PAPERS, "qas policy.pioneer=true", "prism"),
        rates=(30.0, 40.0, 50.0),
    ),
    Experiment(
        "preble",
        "Preble's ablation",
        ("toolbench-x4",),
        PREBLE,
        rates=(170.0,),
    ),
    Experiment(
        "top-k",
        "Passages a request",
        ("top-3-4b", "paper-4b", "top-8-4b"),
        ("qas",),
        rates=(50.0,),
    ),
    Experiment(
        "hot-rate",
        "Share of hot requests",
        ("hot-rate-0.3-4b", "hot-rate-0.5-4b", "paper-4b", "hot-rate-0.9-4b"),
        PAPERS,
        rates=(60.0,),
    ),
    Experiment(
        "zipf",
        "Zipf exponent",
        ("zipf-0.8-4b", "zipf-1.0-4b", "paper-4b", "zipf-1.4-4b"),
        PAPERS,
        rates=(60.0,),
    ),
    Experiment(
        "readings-13b",
        "Other readings of the trace, Llama2-13B",
        ("reading-c-13b", "prefix-270-13b", "reading-a-13b"),
        PAPERS,
        rates=(10.0, 20.0, 30.0),
    ),
    Experiment(
        "readings-4b",
        "Other readings of the trace, Qwen3-4B",
        ("reading-c-4b", "prefix-270-4b", "reading-a-4b"),
        PAPERS,
        rates=(40.0, 60.0, 80.0),
    ),
    Experiment(
        "agents-small-pool",
        "Agent prompts, a smaller pool",
        ("agents-small-pool-4b",),
        (*PAPERS, "qas policy.pioneer=true", "prism"),
        rates=(30.0, 40.0, 50.0),
    ),
    Experiment(
        "ingredients-agents",
        "What each ingredient of prism is worth to agents",
        ("agents-small-pool-4b",),
        (
            "prism",
            "prism policy.pioneer=false",
            "prism policy.order=arrival",
            "prism/lru policy.hints=false",
        ),
        rates=(40.0,),
    ),
    Experiment(
        "steady",
        "20,000 requests below the knee",
        ("steady-4b",),
        ("prism", "qas", "front-alignment"),
        loads=(0.8, 0.9, 0.95),
        seeds=SEEDS,
    ),
)
"""In the order in which they run: what decides most comes first."""


def experiments(*, quick: bool = False) -> tuple[Experiment, ...]:
    """All of them; ``quick``: the same with two seeds and fewer rates."""
    return tuple(map(_quick, EXPERIMENTS)) if quick else EXPERIMENTS


def _quick(whole: Experiment) -> Experiment:
    return replace(
        whole,
        seeds=min(2, whole.seeds),
        loads=whole.loads[-1:],
        rates=whole.rates[-1:],
    )
