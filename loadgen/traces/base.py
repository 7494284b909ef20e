"""What a trace is, and the traces by name. Nothing is drawn, loaded or replayed here.

A trace says what is asked (prompts as skeletons, lengths of answers), not when: arrivals come from
``loadgen.arrivals``, so that the same prompts can be sent at every rate.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from loadgen.arrivals import ARRIVALS
from prism_ray.model import Atom, Order, Skeleton, Ticket
from prism_ray.registry import Registry

TRACE_CLOCK = "trace"
"""The arrival process that takes the trace's own times."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: its prompt as the control plane knows it, and how much it will generate.

    ``output`` names the generated tokens where a later request continues them; ``private`` names the
    private rest where a later request has it in front. Empty: unique to the request. ``arrival_s``
    is on the trace's own clock; ``session`` groups the requests of one conversation. ValueError if
    the named tokens are not as many as the request has.
    """

    request_id: str
    skeleton: Skeleton
    output_tokens: int
    output: tuple[Atom, ...] = ()
    arrival_s: float = 0.0
    session: str = ""
    private: tuple[Atom, ...] = ()

    def __post_init__(self) -> None:
        if self.output and sum(a.tokens for a in self.output) != self.output_tokens:
            raise ValueError(
                f"{self.request_id}: named output is not {self.output_tokens} tokens long"
            )
        private_tokens = self.skeleton.private_tokens
        if self.private and sum(a.tokens for a in self.private) != private_tokens:
            raise ValueError(f"{self.request_id}: named rest is not {private_tokens} tokens long")

    @property
    def private_atoms(self) -> tuple[Atom, ...]:
        """The private rest of the prompt, named; empty if there is none."""
        if self.private or not self.skeleton.private_tokens:
            return self.private
        return (Atom(b"private of " + self.request_id.encode(), self.skeleton.private_tokens),)

    @property
    def output_atoms(self) -> tuple[Atom, ...]:
        """The generated tokens, named; empty if there are none."""
        if self.output or not self.output_tokens:
            return self.output
        return (Atom(b"output of " + self.request_id.encode(), self.output_tokens),)

    def prompt(self, order: Order | None = None) -> tuple[Atom, ...]:
        """The whole prompt as a path, in ``order`` (as the client wrote it by default)."""
        skeleton = self.skeleton
        return (*skeleton.path(order or skeleton.native_order), *self.private_atoms)


@dataclass(frozen=True)
class Trace:
    """Requests in the order in which they arrive, and what is to be said about where they are from.

    ``notes`` belong into every report: which parts are real, which are generated, what was cut.
    ``text_of`` gives the text of a segment by its id, None where the trace has no texts.
    """

    name: str
    seed: int
    options: Mapping[str, Any]
    requests: tuple[TraceRequest, ...]
    notes: tuple[str, ...] = ()
    text_of: Callable[[bytes], str | None] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def prompts_sha256(self) -> str:
        """Equal for traces that ask the same: prompts, what may move, outputs; not arrivals."""
        digest = hashlib.sha256()
        for request in self.requests:
            skeleton = request.skeleton
            system = () if skeleton.system is None else (skeleton.system,)
            for segment in (*system, *skeleton.segments):
                digest.update(b"s%b %d %a\n" % (segment.id, segment.tokens, segment.run))
            for mark, atoms in (
                (b"g", skeleton.gaps),
                (b"p", request.private_atoms),
                (b"o", request.output_atoms),
            ):
                for atom in atoms:
                    name = atom.id if atom.tokens else b""
                    digest.update(b"%b%b %d\n" % (mark, name, atom.tokens))
            digest.update(b"end\n")
        return digest.hexdigest()

    def arrivals(self, process: str, rate: float | None = None, seed: int = 0) -> list[float]:
        """Arrival of each request in seconds since the start: ``len(requests)``, ascending.

        ``process`` is one of ``ARRIVALS``, at ``rate`` requests/s, or "trace": the trace's own
        times, scaled to ``rate`` if one is given. ValueError for an unknown process, a missing rate,
        or "trace" where the trace has no times or they do not ascend.
        """
        if process != TRACE_CLOCK:
            if process not in ARRIVALS:
                known = ", ".join([*sorted(ARRIVALS), TRACE_CLOCK])
                raise ValueError(f"unknown arrivals {process!r}; known: {known}")
            if rate is None:
                raise ValueError(f"{process} arrivals need a rate")
            return ARRIVALS[process](len(self.requests), rate, np.random.default_rng(seed))
        times = [r.arrival_s for r in self.requests]
        if len(times) > 1 and max(times) == min(times):
            raise ValueError(f"trace {self.name} has no times of its own")
        if any(later < earlier for earlier, later in pairwise(times)):
            raise ValueError(f"the times of trace {self.name} do not ascend")
        start_s = min(times, default=0.0)
        scale = 1.0
        if rate is not None and len(times) > 1:
            scale = (len(times) - 1) / rate / (max(times) - start_s)
        return [(t - start_s) * scale for t in times]

    def timed(self, arrivals_s: Sequence[float]) -> Trace:
        """The same requests with ``arrivals_s`` as the trace's own times."""
        requests = tuple(
            replace(r, arrival_s=at_s) for r, at_s in zip(self.requests, arrivals_s, strict=True)
        )
        return replace(self, requests=requests)

    def tickets(self, arrivals_s: Sequence[float] | None = None) -> list[Ticket]:
        """The requests as the scheduler gets them; all at zero without ``arrivals_s``."""
        times = [0.0] * len(self.requests) if arrivals_s is None else arrivals_s
        return [
            Ticket(r.request_id, r.skeleton, at_s, max_new_tokens=r.output_tokens)
            for r, at_s in zip(self.requests, times, strict=True)
        ]


TraceMaker = Callable[..., Trace]
"""Called with ``seed``, ``count`` and the trace's own options, all by keyword."""

TRACES: Registry[TraceMaker] = Registry("trace")


def trace_options(name: str) -> dict[str, Any]:
    """The options of the trace ``name`` and their defaults. Raises UnknownName."""
    parameters = inspect.signature(TRACES[name]).parameters
    return {n: p.default for n, p in parameters.items() if n not in ("seed", "count")}


def make_trace(name: str, seed: int = 0, count: int = 2048, **options: Any) -> Trace:
    """``count`` requests of the trace ``name``, drawn by ``seed``; fewer where its data set ends.

    Raises UnknownName for the trace, ValueError for an option that it does not have or take, and
    ``loadgen.traces.data.DataMissing`` (with the path) where the data set is not there.
    """
    known = trace_options(name)
    unknown = sorted(set(options) - set(known))
    if unknown:
        has = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise ValueError(f"trace {name} has no option {', '.join(unknown)}; {has}")
    if count < 0:
        raise ValueError(f"a trace cannot have {count} requests")
    return TRACES[name](seed=seed, count=count, **options)


def digest(*names: str | bytes | int) -> bytes:
    """The id of something that is named by ``names``: 16 bytes, equal for equal names."""
    text = b"\0".join(n if isinstance(n, bytes) else str(n).encode() for n in names)
    return hashlib.blake2b(text, digest_size=16).digest()
