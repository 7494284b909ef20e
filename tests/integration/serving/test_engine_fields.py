"""That the allow-list of body fields knows every field of the engine's own protocol."""

from __future__ import annotations

import pytest

from prism_ray.engine.base import Endpoint
from prism_ray.serving.body_fields import ALLOWED, REFUSED

DROPPED = {
    "cache_salt",  # read by the ingress
    "return_cached_tokens_details",
    "return_flat_raw_output_top_logprobs",
    "return_flat_raw_top_logprobs_b64",
    "return_input_ids_in_sglext",
    "return_meta_info",
    "return_output_ids_in_sglext",
    "return_prompt_token_ids",
    "return_sampling_mask",
    "return_spec_tokens_details",
    "return_token_ids",
    "sampling_logprobs_mode",
    "task",
    "thinking",
}


@pytest.mark.parametrize(
    ("endpoint", "name"), [("chat", "ChatCompletionRequest"), ("completions", "CompletionRequest")]
)
def test_every_field_of_the_engine_was_decided_about(endpoint: Endpoint, name: str) -> None:
    protocol = pytest.importorskip("sglang.srt.entrypoints.openai.protocol")
    fields = set(getattr(protocol, name).model_fields)
    left = fields - ALLOWED[endpoint] - REFUSED - DROPPED
    assert not {field for field in left if not field.startswith("bootstrap_")}
