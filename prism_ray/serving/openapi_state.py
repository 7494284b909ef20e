"""The published schema of ``/prism/state`` and ``/prism/explain``. Describes; builds nothing."""

from __future__ import annotations

from typing import Any

from prism_ray.dispatch import ResidencyState
from prism_ray.model import Lane

Schema = dict[str, Any]

_LANES = [str(lane) for lane in Lane]


def _text(says: str = "") -> Schema:
    return _field("string", says)


def _whole(says: str = "") -> Schema:
    return _field("integer", says)


def _number(says: str = "") -> Schema:
    return _field("number", says)


def _maybe(schema: Schema) -> Schema:
    """It can be null, too."""
    return schema | {"type": [schema["type"], "null"]}


def _field(kind: str, says: str) -> Schema:
    return {"type": kind} | ({"description": says} if says else {})


def _list(items: Schema, says: str = "") -> Schema:
    return _field("array", says) | {"items": items}


def _by_name(values: Schema, says: str) -> Schema:
    return _field("object", says) | {"additionalProperties": values}


def _named(name: str) -> Schema:
    """A schema that is published under this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(says: str = "", optional: tuple[str, ...] = (), /, **fields: Schema) -> Schema:
    required = [name for name in fields if name not in optional]
    return _field("object", says) | {"properties": fields, "required": required}


_SEGMENT = _object(
    segment=_text("Its digest."),
    label=_text("The client's name for it; may be empty."),
    active=_whole("Dispatched requests that have it."),
    queued=_whole("Waiting requests that have it."),
    next=_whole("Of the last dispatches of every replica, those that have it."),
    priority=_number("The policy's: of `prism` the decayed number of arrivals."),
)

_BUCKET = _object(
    signature=_list(_text(), "The front that its requests share: labels, or digests."),
    score=_number(),
    size=_whole("Waiting requests."),
)

_FRONT = _object(
    front=_list(_text(), "What these requests will write first: labels, or digests."),
    size=_whole("Waiting requests that share it, and no longer one."),
    tokens=_whole("Its length."),
    saved_tokens=_whole("Tokens of these requests that are cached, or computed for another one."),
    position=_whole("Requests that go before the first of them at its replica."),
)

_LANES_OF_REPLICA = _object(
    "", ("active",), dispatched=_whole(), hot=_whole(), cold=_whole(), active=_whole()
)

_WINDOW = _object(
    "What the policy says. Without what it does not keep; of several tenants only totals.",
    ("oldest", "segments", "buckets", "fronts", "lanes", "tenants"),
    policy=_text(),
    queued=_whole("Waiting requests."),
    active=_whole("Dispatched requests that have not ended."),
    oldest=_list(_text(), "Ids of the first in the queue."),
    segments=_list(_SEGMENT, "Hottest first."),
    buckets=_list(_BUCKET, "Of `qas`, best first."),
    fronts=_list(
        _FRONT, "Of `prism`: what its plan lets several requests share, most saving first."
    ),
    lanes=_by_name(_LANES_OF_REPLICA, "By replica: `dispatched`, `hot`, `cold`, since it was met."),
    tenants=_whole("How many are known, once there are several."),
)

_REPLICA = _object(
    replica=_text("Its name."),
    incarnation=_text("Changes when it starts anew."),
    model=_text(),
    residency={
        "enum": [str(s) for s in ResidencyState],
        "description": "What its cache's view is.",
    },
    draining={"type": "boolean", "description": "Gets nothing new."},
    credit_tokens=_whole("Tokens that may still be sent ahead of its prefill."),
    queued_tokens=_whole("Its share of the prompt tokens that wait in the window."),
    sent=_whole("Requests that were sent and did not return."),
    not_prefilled=_whole("Of these, with a prefill ahead."),
    foreign=_whole("Requests of another scheduler that it has besides."),
    dispatched=_whole("Requests sent since it was met."),
    resident_tokens=_whole("Reusable tokens believed to be in its cache."),
    pool_tokens=_whole("Size of its KV pool."),
    pool_used_tokens=_maybe(_whole("Null, like the next two, until it has reported.")),
    running=_maybe(_whole("Requests in its engine.")),
    engine_waiting=_maybe(_whole("Requests that wait inside its engine.")),
    prompt_tokens_total=_whole(),
    cached_tokens_total=_whole(),
    hit_rate=_maybe(_number("Cached part of all its prompt tokens.")),
    evicted_tokens_total=_whole(),
    prefill_tokens_per_s=_number("Measured."),
    engine=_by_name(_number(), "What its engine counts, by its own names."),
)

_WAIT = _object(count=_whole(), mean_s=_maybe(_number()), p95_s=_maybe(_number()))

STEP = _object(
    begin_age_s=_number("How long ago it began."),
    end_age_s=_number("How long ago it ended; 0: it is not over."),
    ttft=_WAIT,
    queue_wait=_WAIT,
    ttft_terms=_object(
        queue_wait_s=_maybe(_number()),
        prefill_s=_maybe(_number()),
        first_token_s=_maybe(_number()),
    ),
    lanes=_by_name(_whole(), "Decisions by lane."),
)

_PLACEMENT = _maybe(
    _object(
        "Which replica, and why; null where the placement only gives turns.",
        kind=_text("The placement's rule."),
        numbers=_by_name(_number(), "What it compared."),
    )
)

EXPLAINED = _object(
    request_id=_text(),
    attempt=_whole("0, and one more each time that it was decided anew."),
    replica=_text(),
    plan_version=_whole("The plan that it went with."),
    position=_whole("Its place in that plan."),
    lane={"enum": _LANES},
    score=_number("The policy's."),
    reason=_text("The policy's rule, then the placement's."),
    order=_list(_whole(), "Which segment of the prompt stands in each slot."),
    queue_s=_number("Arrival to decision."),
    predicted_cached_tokens=_whole(),
    age_s=_number("Since the decision."),
    placement=_PLACEMENT,
)

STATE = _object(
    epoch=_text("Of this QAS actor: a new one has another."),
    policy=_text(),
    placement=_text(),
    placements=_by_name(_whole(), "Choices of a replica by kind."),
    waiting=_whole("Requests in the window."),
    oldest_wait_s=_maybe(_number("How long the oldest of them has waited.")),
    sent=_whole("Requests that replicas have."),
    rounds=_whole("Scheduling rounds."),
    window=_WINDOW,
    replicas=_list(_REPLICA),
    telemetry=_object(
        "The store, and totals since this QAS actor started.",
        store_up={"type": "boolean"},
        store_embedded={"type": "boolean"},
        store_dropped=_whole("Values that it did not get."),
        decisions_total=_whole(),
        prompt_tokens_total=_whole(),
        cached_tokens_total=_whole(),
        predicted_cached_tokens_total=_whole(),
        mispredicted_cached_tokens_total=_whole(),
    ),
    recent=_object(
        "The last minutes, sampled.",
        step_s=_number("Seconds of a step."),
        span_s=_number("Seconds that are kept."),
        steps=_list(_named("Step"), "Oldest first; the last one is not over."),
        all=_named("Step") | {"description": "All of them as one."},
    ),
    decisions=_maybe(
        _list(
            _named("Explained"), "The last ones, newest first; null once several tenants are known."
        )
    ),
)
