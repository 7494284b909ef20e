"""From a request's bytes to an Inference: everything that is refused at the door is refused here.

No HTTP server and no scheduler in here; CPU-bound, for a long prompt some milliseconds of tokenizing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prism_ray.config import LimitsConfig, PrismConfig
from prism_ray.engine.base import Endpoint
from prism_ray.prompt import PromptError, PromptLimits, Splitter, load_tokenizer
from prism_ray.prompt.prepared import PreparedPrompt
from prism_ray.serving import errors
from prism_ray.serving.body_fields import checked_fields, parse_json
from prism_ray.serving.errors import ApiError
from prism_ray.serving.inference import Inference
from prism_ray.serving.openai_body import (
    check_shape,
    header_deadline_s,
    output_limit,
)
from prism_ray.tenancy import TenantScope

Bounds = Callable[[], tuple[int, int]]
"""Context and pool of the smallest replica, in tokens; 0 while none is known."""


class Preparation:
    """Shared by all requests of an ingress; thread-safe. Making one loads the tokenizer (seconds)."""

    def __init__(self, config: PrismConfig, secret: bytes, bounds: Bounds) -> None:
        self._limits = config.limits
        self._served = config.model.name
        self._secret = secret
        self._bounds = bounds
        segments = config.segments
        self._splitter = Splitter(
            load_tokenizer(config.model.resolved_tokenizer()),
            PromptLimits(
                automatic_min_tokens=segments.automatic_min_tokens,
                label_chars=segments.label_max_chars,
                segments=segments.count_max,
                segment_bytes=segments.bytes_max,
            ),
            secret,
        )

    def retune(self, limits: LimitsConfig) -> None:
        """Requests that come from now on are bound by these limits."""
        self._limits = limits

    def tables(self) -> dict[str, int]:
        """Sizes of what is remembered of earlier requests."""
        return self._splitter.tables()

    def inference(
        self,
        endpoint: Endpoint,
        raw: bytes,
        headers: Mapping[str, str],
        tenant: str,
        arrived_s: float,
    ) -> Inference:
        """The request that a body asks for. Raises ApiError with the path of what is wrong."""
        given = parse_json(raw, self._limits.json_depth)
        shape = check_shape(endpoint, given)
        body = checked_fields(endpoint, given)
        if shape.model is not None and shape.model != self._served:
            raise errors.unknown_model(shape.model, self._served)
        body["model"] = self._served  # answers name it, also to those who did not
        choices = shape.n or 1
        asked = output_limit(shape, self._limits.default_max_tokens)
        self._check_output(choices, asked)
        deadline_s = header_deadline_s(headers)
        if shape.prism is not None and shape.prism.deadline_s is not None:
            deadline_s = shape.prism.deadline_s
        scope = TenantScope.of(self._secret, tenant, shape.cache_salt or "")
        prompt = self._split(endpoint, body, scope.identity)
        explicit = output_limit(shape, 0) > 0
        max_tokens = self._fit(prompt.skeleton.prompt_tokens, asked, choices, explicit=explicit)
        return Inference(
            endpoint=endpoint,
            body=body,
            prompt=prompt,
            max_new_tokens=max_tokens,
            tenant=scope.name,
            cache_salt=scope.cache_salt,
            arrived_s=arrived_s,
            deadline_s=None if deadline_s is None else arrived_s + deadline_s,
            choices=choices,
            stream=bool(shape.stream),
            wants_report=bool(shape.prism and shape.prism.report),
        )

    def _split(self, endpoint: Endpoint, body: dict[str, Any], identity: bytes) -> PreparedPrompt:
        split = self._splitter.chat if endpoint == "chat" else self._splitter.completions
        try:
            return split(body, identity)
        except PromptError as error:
            raise ApiError(
                error.status, str(error), param=error.path or None, code=error.code
            ) from None

    def _check_output(self, choices: int, asked: int) -> None:
        limits = self._limits
        if choices > limits.n:
            raise errors.bad_request(f"n: at most {limits.n}, got {choices}", "n")
        if asked > limits.max_tokens:
            message = f"max_tokens: at most {limits.max_tokens}, got {asked}"
            raise errors.bad_request(message, "max_tokens")

    def _fit(self, prompt_tokens: int, asked: int, choices: int, *, explicit: bool) -> int:
        """The output limit of each choice that fits the context, and with all choices the pool.

        ApiError when the prompt leaves none. A limit that the client did not ask for shrinks to fit;
        one that it did is refused instead.
        """
        context, pool = self._bounds()
        limit = min((context, pool) if context and pool else (context or pool,))
        if not limit:
            return asked
        room = limit - prompt_tokens
        if pool:
            room = min(room, (pool - prompt_tokens) // choices)
        if room <= 0 or (explicit and asked > room):
            wanted = asked if asked > limit - prompt_tokens else choices * asked
            raise errors.context_length_exceeded(prompt_tokens, wanted if explicit else 1, limit)
        return min(asked, room)
