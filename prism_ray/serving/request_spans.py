"""One request's span tree, from what its ingress knows of it in the end. Emits nothing.

``prism.ingress`` spans the whole request; below it ``prism.queue_wait`` (with ``prism.decision`` inside),
``prism.prefill`` and ``prism.decode`` follow on each other. No client's text is in any of them.
"""

from __future__ import annotations

from prism_ray.model import Decision
from prism_ray.serving.inference import Inference
from prism_ray.telemetry.tracing import Span, Value


def spans_of(inference: Inference, outcome: str, ended_s: float) -> Span:
    """``outcome`` as in ``prism_requests_total``; ``ended_s`` on the clock of ``arrived_s``.

    Durations of the replica's clock are laid into the ingress's span, as for TTFT. What the engine did
    not tell (of a request that it did not finish) has no span: the queue wait ends with the sending.
    """
    decision, answered = inference.decision, inference.answered
    attributes: dict[str, Value] = {
        "prism.request_id": inference.request_id,
        "prism.endpoint": inference.endpoint,
        "prism.stream": inference.stream,
        "prism.outcome": outcome,
        "prism.prompt_tokens": inference.prompt.skeleton.prompt_tokens,
    }
    if answered is not None:
        attributes["prism.cached_tokens"] = answered.cached_tokens
        attributes["prism.output_tokens"] = answered.output_tokens
    marks = _marks(inference, ended_s)
    names = ("prism.queue_wait", "prism.prefill", "prism.decode")
    decided = () if decision is None else (_decision(inference, decision, marks[1]),)
    children = tuple(
        Span(name, start_s, end_s, children=decided if name == names[0] else ())
        for name, start_s, end_s in zip(names, marks, marks[1:], strict=False)
    )
    failed = outcome.startswith("5")
    return Span("prism.ingress", inference.arrived_s, ended_s, attributes, children, failed)


def _marks(inference: Inference, ended_s: float) -> list[float]:
    """Arrival, then as far as known: start and end of the prefill, last token. Never falling."""
    marks = [inference.arrived_s]
    timings = None if inference.answered is None else inference.answered.timings
    if inference.decision is None:
        marks.append(ended_s)
    elif timings is None or timings.prefill_started_s is None or timings.prefill_ended_s is None:
        marks.append(inference.sent_s)
    else:
        marks.append(inference.sent_s + timings.prefill_started_s)
        marks.append(inference.sent_s + timings.prefill_ended_s)
        marks.append(inference.last_payload_s)
    for place in range(1, len(marks)):
        marks[place] = min(max(marks[place], marks[place - 1]), ended_s)
    return marks


def _decision(inference: Inference, decision: Decision, latest_s: float) -> Span:
    """From when QAS decided to when the ingress sent the body: the decision's way."""
    sent_s = min(max(inference.sent_s, inference.arrived_s), latest_s)
    decided_s = min(inference.arrived_s + max(0.0, decision.queue_s), sent_s)
    attributes: dict[str, Value] = {
        "prism.reason": decision.reason,
        "prism.lane": str(decision.lane),
        "prism.replica": decision.replica,
        "prism.attempt": decision.attempt,
        "prism.position": decision.position,
        "prism.score": decision.score,
        "prism.order": decision.order,
        "prism.predicted_cached_tokens": decision.predicted_cached_tokens,
    }
    return Span("prism.decision", decided_s, sent_s, attributes)
