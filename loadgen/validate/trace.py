"""The validation trace: what makes an engine's cache work hard, in few seconds of a small model.

Bursts of prompts that share much, so that several share a prefill batch; a pool that turns over many
times; prompts longer than a chunk; answers of different lengths; clients that leave.
"""

from __future__ import annotations

import random
from itertools import islice

import numpy as np

from loadgen.arrivals import bursts
from loadgen.real.cluster import RealArrival
from loadgen.traces.zipf_hotspot import ZipfHotspot
from prism_ray.model import Skeleton, Ticket

SEGMENT_TOKENS = 24
LONG_PRIVATE_TOKENS = 1200
LONG_EVERY = 40
ABORT_EVERY = 10
BURST_MEAN = 32.0


def validation_arrivals(seed: int, count: int, rate: float) -> list[RealArrival]:
    """``count`` requests of about 200 tokens at ``rate`` requests/s, in bursts.

    One in 40 is longer than a chunk of 1,024 tokens, one in 10 is given up by its client 50 ms to 1 s
    after it came. All is drawn by ``seed``.
    """
    rng = random.Random(f"validation-{seed}")
    shape = ZipfHotspot(
        seed,
        passages=120,
        segment_tokens=SEGMENT_TOKENS,
        system_tokens=48,
        private_tokens=24,
        hot_passages=16,
    )
    times = bursts(count, rate, np.random.default_rng(seed), mean_size=BURST_MEAN)
    made = []
    for number, (skeleton, at_s) in enumerate(
        zip(islice(shape.skeletons(), count), times, strict=True)
    ):
        if number % LONG_EVERY == LONG_EVERY - 1:
            skeleton = _longer(skeleton)
        output_tokens = rng.choice((2, 3, 4, 6, 16))
        leaves = rng.random() < 1 / ABORT_EVERY
        made.append(
            RealArrival(
                Ticket(f"v{seed}-{number}", skeleton, at_s, max_new_tokens=output_tokens),
                output_tokens,
                abort_s=rng.uniform(0.05, 1.0) if leaves else None,
            )
        )
    return made


def _longer(skeleton: Skeleton) -> Skeleton:
    return Skeleton(skeleton.system, skeleton.segments, skeleton.gaps, LONG_PRIVATE_TOKENS)
