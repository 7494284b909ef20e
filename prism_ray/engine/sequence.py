"""A request inside the step model: what it asks for, and how far it is; no queue, no batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from prism_ray.dart import GENERATED, PRIVATE, Anchor, Node, path_tokens
from prism_ray.model import Atom, DemandTable


@dataclass(frozen=True, slots=True)
class SimRequest:
    """What the step model must know of a request.

    ``path`` is the whole prompt, private rest included; ``output`` names the tokens that it will
    generate (at least one), so that a later turn can match them. ``max_new_tokens`` is the limit that
    admission reserves for, by default the length of ``output``. ``table`` is the demand table that
    travels with the request, of scheduler ``epoch``.
    """

    request_id: str
    path: tuple[Atom, ...]
    output: tuple[Atom, ...]
    anchors: tuple[Anchor, ...] = ()
    max_new_tokens: int | None = None
    table: DemandTable | None = None
    epoch: str = ""

    def __post_init__(self) -> None:
        if path_tokens(self.path) < 1 or path_tokens(self.output) < 1:
            raise ValueError(f"request {self.request_id}: a prompt and an output have ≥ 1 token")
        if self.max_new_tokens is not None and self.max_new_tokens < path_tokens(self.output):
            raise ValueError(f"request {self.request_id}: output is longer than max_new_tokens")


class Stage(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    RUNNING = "running"
    DONE = "done"


@dataclass(eq=False, slots=True)
class Sequence:
    """A request on its way. Lengths in tokens.

    ``computed`` KV tokens are launched, ``settled`` of them came back; ``in_tree`` are covered by the
    locked ``node``, ``counted`` are those whose use the tree has counted, and ``held`` are pool tokens
    outside the tree. ``launched`` output tokens are
    sampled or being sampled, ``emitted`` came back. ``admission`` counts admissions: entries of a
    batch that was formed before a retraction are void. ``in_flight`` counts batches not yet ended.
    """

    request: SimRequest
    stage: Stage = Stage.WAITING
    computed: int = 0
    settled: int = 0
    in_tree: int = 0
    counted: int = 0
    held: int = 0
    node: Node | None = None
    launched: int = 0
    emitted: int = 0
    admission: int = 0
    in_flight: int = 0
    cached_tokens: int | None = None
    prefill_reported: bool = False
    aborting: bool = False
    path: tuple[Atom, ...] = field(init=False)
    anchors: tuple[Anchor, ...] = field(init=False)
    prompt_tokens: int = field(init=False)
    output_tokens: int = field(init=False)
    max_new_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.path = request.path + request.output
        self.prompt_tokens = path_tokens(request.path)
        self.output_tokens = path_tokens(request.output)
        self.max_new_tokens = request.max_new_tokens or self.output_tokens
        self.anchors = (
            *request.anchors,
            Anchor(self.prompt_tokens, PRIVATE),
            Anchor(self.prompt_tokens + self.output_tokens, GENERATED),
        )

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def fill_tokens(self) -> int:
        """What prefill must bring into the KV: the prompt, and after a retraction its output so far."""
        return self.prompt_tokens + self.emitted

    @property
    def all_launched(self) -> bool:
        return self.launched >= self.output_tokens

    @property
    def remaining_limit(self) -> int:
        """Output tokens that it may still ask for, as far as admission knows."""
        return max(0, self.max_new_tokens - self.launched)

    def reset(self) -> None:
        """Back to the queue with nothing but its output so far."""
        self.stage = Stage.WAITING
        self.computed = self.settled = self.in_tree = self.held = 0
        self.node = None
        self.launched = self.emitted
