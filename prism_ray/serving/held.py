"""A request as its replica holds it: one engine request per choice, and what became of each.

The engine requests have ids of their own, new in every attempt: an engine that has not let go of an
old one can never confuse the two. Bookkeeping only; who aborts and reports is the replica's matter.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from prism_ray.engine.base import Finished, PrefillEnded, PrefillStarted
from prism_ray.model import Completion, InFlight, Outcome
from prism_ray.serving.plan_gate import EntryKey


@dataclass(slots=True)
class Choice:
    """One engine request."""

    held: Held
    index: int
    engine_id: str
    finished: Finished | None = None


@dataclass(slots=True)
class Held:
    """A request whose body is here.

    Its first choice is the pioneer: it computes the prompt, and the others follow when its KV can be
    matched. ``in_engine`` is set while the request owes its QAS a completion.
    """

    key: EntryKey
    uncached_tokens: int
    received_s: float
    choices: list[Choice] = field(default_factory=list)
    in_engine: bool = False
    prompt: PrefillStarted | None = None
    prefill_started_s: float | None = None
    prefill_ended_s: float | None = None
    first_payload_s: float | None = None
    awaited: int = 1
    pioneered: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    producer: asyncio.Task[None] | None = None

    def new_choice(self) -> Choice:
        """Another engine request, to be submitted now."""
        choice = Choice(self, len(self.choices), uuid.uuid4().hex)
        self.choices.append(choice)
        return choice

    def expect(self, count: int) -> None:
        """The request is gone when this many choices have finished."""
        self.awaited = count

    def expect_no_more(self) -> None:
        """No further choice will be submitted."""
        self.awaited = len(self.choices)
        self._note_gone()

    def drop(self, choice: Choice) -> None:
        """The engine refused this choice at its door: no events will come of it."""
        self.choices.remove(choice)

    def prefill_started(self, choice: Choice, event: PrefillStarted) -> bool:
        """Whether this is the request's own prefill (and not a follower's)."""
        if choice.index > 0 or self.prompt is not None:
            return False
        self.prompt = event
        self.prefill_started_s = event.at_s
        return True

    def prefill_ended(self, choice: Choice, event: PrefillEnded) -> bool:
        """Whether the request's prompt is in the cache now, and was not before."""
        if choice.index > 0 or self.prefill_ended_s is not None:
            return False
        self.prefill_ended_s = event.at_s
        self.pioneered.set()
        return True

    def choice_finished(self, choice: Choice, event: Finished) -> bool:
        """Whether the engine holds nothing of the whole request any more."""
        choice.finished = event
        if choice.index == 0:
            self.pioneered.set()
        self._note_gone()
        return self.gone.is_set()

    def unfinished(self) -> Iterator[Choice]:
        return (choice for choice in self.choices if choice.finished is None)

    def completion(self) -> Completion | None:
        """What became of it: the first choice's prompt, everybody's output. None: nothing is known."""
        ends = [choice.finished for choice in self.choices if choice.finished is not None]
        if not ends:
            return None
        outcomes = {end.outcome for end in ends}
        outcome = next(
            o for o in (Outcome.FAILED, Outcome.ABORTED, Outcome.FINISHED) if o in outcomes
        )
        return Completion(
            self.key[1],
            self.key[2],
            outcome,
            ends[0].prompt_tokens,
            ends[0].cached_tokens,
            sum(end.output_tokens for end in ends),
        )

    def in_flight(self) -> InFlight:
        return InFlight(
            self.key[1], self.key[2], self.uncached_tokens, self.prefill_ended_s is not None
        )

    def _note_gone(self) -> None:
        if len(self.choices) >= self.awaited and not any(self.unfinished()):
            self.gone.set()
