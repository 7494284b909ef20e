"""A program: an engine of ours serves a prompt twice, takes its weights anew from disk, serves it twice.

Prints the cached tokens of all four as JSON. What it says of its cache goes where the environment says.
"""

from __future__ import annotations

import json
import random
import sys
import time

from prism_ray.engine.call_anchors import call_hints
from prism_ray.engine.sglang_launch import launch_args

from .following import retrieval

ARGUMENTS = {"max_total_tokens": 1500, "context_length": 1024, "log_level": "error"}


def main(model: str) -> None:
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**launch_args(model, ARGUMENTS, "dart", cpu=True))
    call = retrieval(random.Random(1)).call()

    def serve() -> int:
        answer = engine.generate(
            input_ids=call.prompt_ids,
            sampling_params={"max_new_tokens": 2, "temperature": 0},
            kv_hints=call_hints(call),
        )
        return int(answer["meta_info"]["cached_tokens"])

    before = [serve(), serve()]
    deadline = time.monotonic() + 60
    # The last answer is out before the scheduler has let its request go, and then nothing is flushed.
    while not (update := engine.update_weights_from_disk(model))[0]:
        assert time.monotonic() < deadline, update[1]
        time.sleep(0.5)
    print("CACHED", json.dumps([*before, serve(), serve()]), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
