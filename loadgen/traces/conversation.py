"""A conversation that grows turn by turn: every turn's prompt begins with the whole of the last one.

Knows ids and lengths, no texts; where the messages come from is somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.traces.base import TraceRequest, digest
from prism_ray.model import NO_GAP, Atom, Segment, SegmentKind, Skeleton


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the agent and all that stands before it.

    ``pieces`` are (gap, segment) as they were said. Answers among them are whole; ``answers`` are
    their positions, so that a budget can cut them where the engine stopped.
    """

    system: Segment | None
    pieces: tuple[tuple[Atom, Segment], ...]
    answers: frozenset[int]
    header: Atom
    answer_id: bytes
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        system = self.system.tokens if self.system else 0
        return system + sum(g.tokens + s.tokens for g, s in self.pieces) + self.header.tokens

    def request(
        self, request_id: str, session: str, budget: int | None, continued: bool = True
    ) -> TraceRequest:
        """The request that this turn is, with at most ``budget`` generated tokens.

        With ``continued`` an answer in a later prompt is two segments: what was generated under the
        budget, and the rest of what was recorded, so that the first can be found in the cache.
        """
        gaps: list[Atom] = []
        segments: list[Segment] = []
        for position, (gap, segment) in enumerate(self.pieces):
            gaps.append(gap)
            if position not in self.answers or not continued:
                segments.append(segment)
                continue
            head, rest = _cut(segment.id, segment.tokens, budget)
            segments.append(Segment(head.id, head.tokens, segment.kind))
            if rest.tokens:
                gaps.append(NO_GAP)
                segments.append(Segment(rest.id, rest.tokens, segment.kind))
        generated, _ = _cut(self.answer_id, self.answer_tokens, budget)
        return TraceRequest(
            request_id,
            Skeleton(self.system, tuple(segments), tuple(gaps), self.header.tokens),
            generated.tokens,
            output=(generated,) if continued and generated.tokens else (),
            session=session,
            private=(self.header,) if self.header.tokens else (),
        )


class Conversation:
    """What has been said so far. ``add`` what the agent gets, ``answer`` for what it says."""

    def __init__(self, system: Segment | None) -> None:
        self._system = system
        self._pieces: list[tuple[Atom, Segment]] = []
        self._answers: set[int] = set()

    def add(self, header: tuple[bytes, int], name: bytes, tokens: int, kind: SegmentKind) -> None:
        """A message to the agent: its header (id, tokens), then its text."""
        self._pieces.append((Atom(*header), Segment(name, tokens, kind)))

    def answer(self, header: tuple[bytes, int], name: bytes, tokens: int) -> Turn:
        """The agent answers now; the answer stands in all later prompts."""
        turn = Turn(
            self._system,
            tuple(self._pieces),
            frozenset(self._answers),
            Atom(*header),
            name,
            tokens,
        )
        self._answers.add(len(self._pieces))
        self.add(header, name, tokens, SegmentKind.TURN)
        return turn


def _cut(name: bytes, tokens: int, budget: int | None) -> tuple[Atom, Atom]:
    if budget is None or tokens <= budget:
        return Atom(name, tokens), Atom(b"", 0)
    head = Atom(digest(name, "first", budget), budget)
    return head, Atom(digest(name, "after", budget), tokens - budget)
