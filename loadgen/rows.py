"""What a run leaves behind: one row a request, and the file they go to. Sends and computes nothing.

All ``*_s`` times of a row are seconds on the monotonic clock since the start of the run, so that
they compare with the schedule; a duration is a difference of two of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

FORMAT = 1
"""Version of the run file; a reader refuses another."""


class Outcome(StrEnum):
    """How a request ended, as its client saw it; every request has exactly one."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """An HTTP status of 400 or more; ``status`` and ``error_code`` say which."""
    CONNECTION = "connection"
    """No connection, or lost before an HTTP status came."""
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"
    """The answer broke off: the connection was lost, or a stream ended without [DONE]."""
    STREAM_ERROR = "stream_error"
    """An error event in the middle of a stream."""
    MALFORMED = "malformed"
    """A success status with a body that is no OpenAI answer."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request and when it is due: ``at_s`` seconds after the start of the run.

    ``path`` is relative to the server's ``/v1``.
    """

    at_s: float
    body: Mapping[str, Any]
    id: str = ""
    path: str = "chat/completions"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RequestRow:
    """One request's fate, raw: every metric can be computed again from rows.

    ``sent_s`` − ``scheduled_s`` is the generator's own lateness. ``chunk_s`` are the arrival times
    of the chunks that carried content; a chunk may hold several tokens. Token counts are the
    server's (``usage``), None where it gave none. ``prism`` is the server's report object.
    """

    id: str
    scheduled_s: float
    sent_s: float | None = None
    headers_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    outcome: Outcome = Outcome.CONNECTION
    status: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    retry_after: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    comments: int = 0
    streamed: bool = True
    replica: str | None = None
    lane: str | None = None
    queue_ms: float | None = None
    prism: dict[str, Any] | None = None

    @property
    def answered(self) -> bool:
        return self.outcome is Outcome.ANSWERED

    @property
    def lateness_s(self) -> float | None:
        """How much later than planned the request was sent."""
        return None if self.sent_s is None else self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """First content chunk − *scheduled* arrival, so waiting anywhere counts (open loop).

        None for what was not streamed: it has no first token that a client could see.
        """
        return self.chunk_s[0] - self.scheduled_s if self.streamed and self.chunk_s else None

    @property
    def latency_s(self) -> float | None:
        """End of the answer − scheduled arrival."""
        return None if self.ended_s is None else self.ended_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """(last chunk − first chunk) / (tokens − 1); None below two tokens."""
        if not self.chunk_s or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Gaps between content chunks (inter-token latency where a chunk is a token)."""
        return [b - a for a, b in zip(self.chunk_s, self.chunk_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: what was asked for, hashes that tell whether two runs asked the same, and the rows."""

    config: Mapping[str, Any]
    prompts_sha256: str
    arrivals_sha256: str
    started_unix_s: float
    arrival_period_s: float
    rows: tuple[RequestRow, ...]

    @classmethod
    def of(
        cls,
        requests: Sequence[PlannedRequest],
        rows: Iterable[RequestRow],
        *,
        config: Mapping[str, Any],
        started_unix_s: float,
    ) -> RunRecord:
        return cls(
            config=config,
            prompts_sha256=hash_prompts(requests),
            arrivals_sha256=hash_arrivals(requests),
            started_unix_s=started_unix_s,
            arrival_period_s=max((r.at_s for r in requests), default=0.0),
            rows=tuple(rows),
        )

    def write(self, path: Path) -> None:
        """Write as JSON."""
        value = {"format": FORMAT, **asdict(self)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def processes(self) -> int:
        """How many processes of the generator sent it."""
        return int(self.config.get("processes") or 1)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """ValueError for a file of another format."""
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
            raise ValueError(f"{path} is no run file of format {FORMAT}")
        rows = [RequestRow(**{**r, "outcome": Outcome(r["outcome"])}) for r in value.pop("rows")]
        return cls(**value, rows=tuple(rows))


def hash_prompts(requests: Sequence[PlannedRequest]) -> str:
    """SHA-256 over paths and bodies in order: equal for equal prompts, whenever they arrive."""
    digest = hashlib.sha256()
    for request in requests:
        line = json.dumps([request.path, request.body], sort_keys=True, ensure_ascii=False)
        digest.update(line.encode("utf-8", errors="surrogatepass") + b"\n")
    return digest.hexdigest()


def hash_arrivals(requests: Sequence[PlannedRequest]) -> str:
    """SHA-256 over the exact arrival times in order."""
    lines = "\n".join(float(r.at_s).hex() for r in requests)
    return hashlib.sha256(lines.encode()).hexdigest()
