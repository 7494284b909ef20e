"""The engine protocol: what a replica needs of an inference engine, naming none in particular.

An engine answers OpenAI bodies over prompts that are already token ids. Responses come from
``submit``; what the control plane must know (prefill started, prefill ended, finished) comes from
``events``, which no client's cancellation can cut off. What its cache holds it says beside them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from prism_ray.model import Outcome

Endpoint = Literal["chat", "completions"]


class EngineRefused(Exception):
    """The engine will not take this request: an HTTP status and an OpenAI error body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(body.get("error", {}).get("message", "refused"))
        self.status = status
        self.body = body


class EngineDied(Exception):
    """The engine's processes are gone; nothing more will come from it."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine can hold; lengths in tokens."""

    model: str
    pool_tokens: int
    context_length: int
    max_running: int
    chunked_prefill_tokens: int | None
    max_prefill_tokens: int
    page_size: int
    takes_hints: bool = False
    """Whether its cache reads demand tables; others are not sent any."""
    tells_cache: bool = False
    """Whether it says what its cache holds (``Engine.follow_cache``)."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request: the client's OpenAI body, and the prompt that was decided for it.

    ``prompt_ids`` are final: the engine does not tokenize again. ``boundaries`` are token offsets of
    segment ends (anchors); ``segments`` names what ends there, in the same order (None: not reusable),
    and ``path_keys`` the very place (``dart.anchors``; None: nobody's). No path keys at all: the caller
    does not follow what the cache keeps.
    ``hints`` is a demand table's payload for the engine's cache, or None. ``system_tokens`` is the
    length of the system prefix, which ends at the first boundary; 0 if there is none or unknown.
    Calls of different ``cache_salt`` never share cached prefixes, whatever their tokens.
    """

    request_id: str
    endpoint: Endpoint
    body: dict[str, Any]
    prompt_ids: list[int]
    boundaries: tuple[int, ...] = ()
    segments: tuple[bytes | None, ...] = ()
    path_keys: tuple[bytes | None, ...] = ()
    hints: dict[str, Any] | None = None
    system_tokens: int = 0
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class PrefillStarted:
    """The engine admitted the request: it matched ``cached_tokens`` of ``prompt_tokens``."""

    request_id: str
    at_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillEnded:
    """The prompt's KV is computed and inserted: later batches can match it."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine holds nothing of the request any more. Comes exactly once per submitted request."""

    request_id: str
    at_s: float
    outcome: Outcome
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


CacheTold = Callable[[bytes], None]
"""Takes one encoded message of ``cache_news``."""

EngineEvent = PrefillStarted | PrefillEnded | Finished


@dataclass(frozen=True, slots=True)
class ResponseChunk:
    """One piece of an answer: an OpenAI object (a stream chunk, or the whole response)."""

    payload: dict[str, Any]
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Absolute numbers of now; totals count since the engine started."""

    running: int = 0
    waiting: int = 0
    pool_used_tokens: int = 0
    evicted_tokens_total: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """An inference engine in this process's care. All times are ``time.monotonic`` seconds."""

    async def start(self) -> EngineInfo:
        """Load the model and begin to serve; returns when requests can be submitted."""

    async def submit(self, call: EngineCall) -> AsyncIterator[ResponseChunk]:
        """Hand the request to the engine's own queue, then return its answer's iterator.

        When this returns, every later ``submit`` is behind this one in the engine's queue. Closing
        the iterator early does not abort: the caller calls ``abort``. Raises EngineRefused for what
        the engine will not do, EngineDied when it is gone.
        """

    async def abort(self, request_id: str) -> None:
        """Stop a request wherever it is; its Finished event follows. Unknown ids are ignored."""

    def events(self) -> AsyncIterator[EngineEvent]:
        """All events of all requests in the order they happened; one consumer. Ends with the engine,
        raising EngineDied if it was not stopped."""

    def follow_cache(self, told: CacheTold) -> None:
        """From now on call ``told`` with each message on what the cache holds, in order, one listener.

        What an event stands for is told before the event. Nothing comes where ``tells_cache`` is off.
        """

    async def snapshot_cache(self) -> None:
        """Ask for a message, or several, that name everything cached; they come as all others do."""

    async def load(self) -> EngineLoad:
        """What the engine holds right now."""

    async def flush_cache(self) -> bool:
        """Drop all cached prefixes; False if requests are running."""

    async def stop(self) -> None:
        """End the engine and every process it started."""
