"""A process with one SGLang engine on the CPU: scripted prompts in, log probabilities out.

Started with the CPU environment; prints JSON as its last line. Prompts cover what an attention
backend meets: cold, a cached prefix with one or many new tokens, chunks, a batch of mixed lengths.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from prism_ray.engine.cpu.environment import cpu_engine_args

TOP = 20
NEW_TOKENS = 6
CHUNK_TOKENS = 128


def prompts() -> list[list[list[int]]]:
    """Batches, run one after another."""
    chooser = random.Random(5)
    base = [chooser.randrange(100, 40_000) for _ in range(300)]
    return [
        [base[:100]],
        [base],
        [base[:200] + base[:50]],
        [[*base[:200], 7]],
        [base],
        [base[10 * i : 70 + 27 * i] for i in range(6)],
    ]


def main(model: str, backend: str) -> None:
    import sglang

    args = {**cpu_engine_args(), "attention_backend": backend, "log_level": "error"}
    engine = sglang.Engine(
        model_path=model,
        max_total_tokens=4000,
        context_length=1024,
        chunked_prefill_size=CHUNK_TOKENS,
        **args,
    )
    answers = [answer for batch in prompts() for answer in run(engine, batch)]
    engine.shutdown()
    print(json.dumps(answers))


def run(engine: Any, batch: list[list[int]]) -> list[dict[str, Any]]:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    results = engine.generate(
        input_ids=batch, sampling_params=sampling, return_logprob=True, top_logprobs_num=TOP
    )
    return [
        {
            "cached_tokens": result["meta_info"]["cached_tokens"],
            "ids": result["output_ids"],
            "top": [
                {str(token): logprob for logprob, token, _ in position}
                for position in result["meta_info"]["output_top_logprobs"]
            ],
        }
        for result in results
    ]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
