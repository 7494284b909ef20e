"""What E2 keeps of each replica: load of the last H, backlog, speed. Books only; chooses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from prism_ray.placement.books import Book, Placed
from prism_ray.placement.cost import Average, DecodeFit, PrefillFit, Speed
from prism_ray.placement.forest import Shelf, Use
from prism_ray.scheduling import ToldCacheView

OUTPUTS_REMEMBERED = 256
YOUNGEST = 360
"""A replica younger than the window divided by this is judged as if it were that old."""


@dataclass(slots=True, eq=False)
class Stretch:
    """A replica's prefills that ended at one moment: one observation for the fit."""

    ended_s: float
    before_s: float
    started_s: float = float("inf")
    prompts: int = 0
    new_tokens: float = 0.0
    prompt_tokens: float = 0.0
    products: float = 0.0


@dataclass(slots=True, eq=False)
class E2Book(Book):
    """A replica. ``load_s`` is L over the uses in the window, ``decode_s`` the decoding part of it;
    ``backlog_s`` is the prefill that was placed and has not ended, ``prefills_s`` all that ever ended;
    all in seconds of its own time. ``computing`` prompts were sent and have not ended, one of them under
    way since ``computing_since_s``. ``told`` is its cache's view, if its engine may tell what it holds.
    ``late`` marks one that joined others at work.
    """

    shelf: Shelf = field(kw_only=True)
    told: ToldCacheView | None = None
    late: bool = False
    load_s: float = 0.0
    decode_s: float = 0.0
    loads: int = 0
    backlog_s: float = 0.0
    backlog: int = 0
    computing: int = 0
    computing_since_s: float = 0.0
    decoding: int = 0
    explored: int = 0
    prefills_s: float = 0.0
    outputs: Average = field(default_factory=lambda: Average(0.0, OUTPUTS_REMEMBERED))
    speed: Speed = field(default_factory=Speed)
    stretch: Stretch | None = None

    def count(self, use: Use) -> None:
        self.load_s += use.cost_s
        self.decode_s += use.decode_s
        self.loads += 1

    def discount(self, use: Use) -> None:
        self.loads -= 1
        # The last one out takes what rounding left.
        self.load_s = self.load_s - use.cost_s if self.loads else 0.0
        self.decode_s = self.decode_s - use.decode_s if self.loads else 0.0

    def owe(self, seconds: float) -> None:
        self.backlog_s += seconds
        self.backlog += 1

    def settle(self, seconds: float) -> None:
        self.backlog -= 1
        self.backlog_s = max(0.0, self.backlog_s - seconds) if self.backlog else 0.0

    def compute(self, now_s: float) -> None:
        """A prompt was sent."""
        if not self.computing:
            self.computing_since_s = now_s
        self.computing += 1

    def computed(self, now_s: float) -> None:
        """One of those that were sent has ended, or is not going to."""
        self.computing -= 1
        self.computing_since_s = now_s

    def backlog_left_s(self, now_s: float) -> float:
        """``backlog_s`` less what is done of the prefill under way, which is thought a mean one.

        It never counts as done: it may take longer than it was thought to.
        """
        if not self.computing:
            return self.backlog_s
        one_s = self.backlog_s / self.backlog
        return self.backlog_s - min(now_s - self.computing_since_s, 0.9 * one_s)

    def is_new(self, explore_until: int) -> bool:
        return self.late and self.served < explore_until

    def scaled_load_s(
        self, window_s: float, now_s: float, forgotten_s: float = float("-inf")
    ) -> float:
        """L as it would be over a whole window, for a replica or a memory that is younger than that."""
        joined_s = self.joined_s
        age_s = now_s - (joined_s if joined_s > forgotten_s else forgotten_s)
        if age_s >= window_s:
            return self.load_s
        return self.load_s * window_s / max(age_s, window_s / YOUNGEST)


@dataclass(slots=True, eq=False)
class E2Placed(Placed):
    """A request at its home: its use of the forest, what its prefill is thought to take there."""

    use: Use = field(kw_only=True)
    prefill_s: float = field(kw_only=True)
    arrival_s: float = field(kw_only=True)
    new_tokens: int = field(kw_only=True)
    sent_s: float = 0.0
    prefilled_s: float = 0.0
    prefills_before_s: float = 0.0


class Observer:
    """Turns ends of prefills and of answers into observations of the cost model."""

    def __init__(self, prefill_tokens_per_s: float, decode_token_s: float) -> None:
        self.fit = PrefillFit(prefill_tokens_per_s)
        self.decode = DecodeFit(decode_token_s)
        self.factor = Average(1.0, 256)

    def prefilled(self, book: E2Book, placed: E2Placed, now_s: float) -> None:
        """A prefill ended. A stretch is observed when the next one begins to end."""
        stretch = book.stretch
        if stretch is None or now_s > stretch.ended_s:
            before_s = float("-inf")
            if stretch is not None:
                self._observe(book, stretch)
                before_s = stretch.ended_s
            stretch = book.stretch = Stretch(now_s, before_s)
        stretch.started_s = min(stretch.started_s, max(placed.sent_s, stretch.before_s))
        stretch.prompts += 1
        stretch.new_tokens += placed.new_tokens
        stretch.prompt_tokens += placed.prompt_tokens
        stretch.products += placed.new_tokens * placed.prompt_tokens

    def finished(self, book: E2Book, placed: E2Placed, output_tokens: int, now_s: float) -> None:
        """An answer ended. The prefills that came between its tokens are not its decoding."""
        book.outputs.add(output_tokens)
        prefills_s = book.prefills_s - placed.prefills_before_s
        seconds = (now_s - placed.prefilled_s - prefills_s) / book.speed.factor
        self.decode.observe(output_tokens, seconds, max(1, book.decoding))

    def _observe(self, book: E2Book, stretch: Stretch) -> None:
        seconds = stretch.ended_s - stretch.started_s
        if seconds <= 0:
            return
        time = self.fit.time
        predicted = (
            time.a * stretch.prompts
            + time.b * stretch.new_tokens
            + time.c * stretch.prompt_tokens
            + time.d * stretch.products
        )
        if predicted > 0 and self.fit.observations >= 16:
            book.speed.observe(seconds, predicted)
        # Seconds of a replica of mean speed: so the factors stay around 1, whatever the fit misses.
        self.factor.add(book.speed.factor)
        self.fit.observe(
            stretch.prompts,
            stretch.new_tokens,
            stretch.prompt_tokens,
            stretch.products,
            seconds * self.factor.value / book.speed.factor,
        )
