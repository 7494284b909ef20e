"""The CPU attention gives what attention is defined to give, and what SGLang's own backend gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_ray.engine.cpu.environment import ATTENTION_BACKEND, cpu_environment

torch = pytest.importorskip("torch")

DRIVER = Path(__file__).with_name("cpu_logprobs.py")
POOL_SLOTS = 256
WIDTH = 8
SCALING = 0.3


def by_definition(query: Any, key: Any, value: Any, prefix: int) -> Any:
    """Softmax attention of one head, row by row, in double precision."""
    rows = []
    for i, row in enumerate(query.double()):
        visible = prefix + i + 1
        weights = torch.softmax(key[:visible].double() @ row * SCALING, dim=0)
        rows.append(weights @ value[:visible].double())
    return torch.stack(rows)


requests = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(requests, st.sampled_from([(1, 1), (4, 4), (4, 2), (9, 3), (6, 1)]), st.integers(0, 99))
def test_each_new_token_attends_to_the_cached_ones_and_to_those_up_to_itself(
    lengths: list[tuple[int, int]], heads: tuple[int, int], seed: int
) -> None:
    from prism_ray.engine.cpu.attention import attend, spans

    query_heads, kv_heads = heads
    generator = torch.Generator().manual_seed(seed)
    shape = (POOL_SLOTS, kv_heads, WIDTH)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    # Any slots, in any order, shared between requests or not; the rest of a row is never read.
    table = torch.randint(POOL_SLOTS, (len(lengths), 64), generator=generator, dtype=torch.int32)
    prefix_lens, extend_lens = [p for p, _ in lengths], [e for _, e in lengths]
    query = torch.randn((sum(extend_lens), query_heads, WIDTH), generator=generator)
    output = torch.full_like(query, float("nan"))
    layout = spans(list(table), prefix_lens, extend_lens, torch.float32)
    for span in layout:
        attend(span, query, keys, values, output, SCALING)
    start = 0
    for slots, (prefix, extend) in zip(table.long(), lengths, strict=True):
        used = slots[: prefix + extend]
        for head in range(query_heads):
            kv_head = head // (query_heads // kv_heads)
            expected = by_definition(
                query[start : start + extend, head],
                keys[used, kv_head],
                values[used, kv_head],
                prefix,
            )
            got = output[start : start + extend, head].double()
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        start += extend


def logprobs(model: Path, backend: str) -> list[dict[str, Any]]:
    environment = {**os.environ, **cpu_environment()}
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(model), backend],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.real_engine
def test_engines_with_our_backend_and_with_torch_native_give_the_same_logprobs(
    random_tiny: Path,
) -> None:
    ours, stock = logprobs(random_tiny, ATTENTION_BACKEND), logprobs(random_tiny, "torch_native")
    assert [a["cached_tokens"] for a in ours] == [a["cached_tokens"] for a in stock]
    assert [a["cached_tokens"] for a in ours][:5] == [0, 100, 200, 200, 299]
    assert [a["ids"] for a in ours] == [a["ids"] for a in stock]
    for mine, theirs in zip(ours, stock, strict=True):
        for position, reference in zip(mine["top"], theirs["top"], strict=True):
            # Tokens at the edge of the top list may swap places; those in both must agree.
            common = position.keys() & reference.keys()
            assert len(common) >= len(reference) - 1
            for token in common:
                assert position[token] == pytest.approx(reference[token], abs=1e-4)
