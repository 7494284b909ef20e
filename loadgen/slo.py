"""Service-level objectives: what an answer has to keep to count as good. Computes no statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from loadgen.rows import RequestRow

_NAMES = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "latency_s"}


@dataclass(frozen=True)
class Slo:
    """Upper limits in seconds, None where there is none; all times are the client's, from the
    scheduled arrival."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    latency_s: float | None = None

    def met(self, row: RequestRow) -> bool:
        """Answered, and within every limit. An answer of one token has no TPOT to miss; one without a
        TTFT (it was not streamed) does not show that it kept one."""
        if not row.answered:
            return False
        if self.ttft_s is not None and (row.ttft_s is None or row.ttft_s > self.ttft_s):
            return False
        if self.tpot_s is not None and row.tpot_s is not None and row.tpot_s > self.tpot_s:
            return False
        late = row.latency_s is None or (
            self.latency_s is not None and row.latency_s > self.latency_s
        )
        return not late

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


def parse_slo(text: str) -> Slo:
    """``ttft=0.5,tpot=0.05,e2e=10`` in seconds, any of them. ValueError for what is none."""
    limits: dict[str, float] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        if name not in _NAMES or _NAMES[name] in limits:
            raise ValueError(
                f"an SLO is written ttft=S,tpot=S,e2e=S, each at most once, not {text!r}"
            )
        try:
            limits[_NAMES[name]] = float(value)
        except ValueError:
            raise ValueError(f"the limit of {name} is a number of seconds, not {value!r}") from None
        if not limits[_NAMES[name]] > 0:
            raise ValueError(f"the limit of {name} lies above 0, not at {value}")
    return Slo(**limits)
