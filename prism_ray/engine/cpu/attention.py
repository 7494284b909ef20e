"""An attention backend for SGLang on a CPU that computes only what is new.

SGLang's ``torch_native`` backend recomputes attention for a prompt's cached part in every extend
pass. This one attends from the new tokens alone, to cached and new keys, under a causal mask shifted
by the cached length; results are the same. Layers that need more than that (sliding window, cross or
encoder attention) are left to ``torch_native``. Registering is all that happens on import of SGLang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from prism_ray.engine.cpu.environment import ATTENTION_BACKEND

if TYPE_CHECKING:
    import torch


class Span(NamedTuple):
    """One request's share of a pass: its query rows, and where its keys and values lie.

    ``slots``: [kv_len] int64, indices into the KV pool, cached tokens first. ``bias``: [rows, kv_len],
    0 where a row may look and -inf where not; None where every row may look everywhere, or
    where ``causal`` says it all (nothing cached).
    """

    start: int
    stop: int
    slots: torch.Tensor
    bias: torch.Tensor | None
    causal: bool


def spans(
    slot_rows: Sequence[torch.Tensor],
    prefix_lens: list[int],
    extend_lens: list[int],
    dtype: torch.dtype,
) -> list[Span]:
    """Lay out a pass over requests whose query rows follow one another.

    ``slot_rows``: a request each, [>= kv_len], the pool slots of its tokens. ``prefix_lens``,
    ``extend_lens``: tokens with keys in the pool before this pass, and new ones. ``dtype``: that of
    the queries.
    """
    layout = []
    start = 0
    for row, prefix, extend in zip(slot_rows, prefix_lens, extend_lens, strict=True):
        slots = row[: prefix + extend].long()
        causal = prefix == 0 and extend > 1
        bias = _causal_bias(prefix, extend, dtype) if prefix > 0 and extend > 1 else None
        layout.append(Span(start, start + extend, slots, bias, causal))
        start += extend
    return layout


def _causal_bias(prefix: int, extend: int, dtype: torch.dtype) -> torch.Tensor:
    """[extend, prefix + extend]: row i may look at the prefix and at new tokens 0..i."""
    import torch

    bias = torch.full((extend, prefix + extend), float("-inf"), dtype=dtype)
    return bias.triu_(diagonal=prefix + 1)


def attend(
    span: Span,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    scaling: float,
) -> None:
    """Write the attention of ``span``'s rows into ``output``.

    ``query``, ``output``: [rows of the pass, heads, width]; ``keys``, ``values``: [pool slots,
    KV heads, width]. Heads share KV heads in consecutive groups, and no key is copied per head.
    """
    from torch.nn.functional import scaled_dot_product_attention

    # [KV heads, kv_len, width]
    key = keys.index_select(0, span.slots).transpose(0, 1)
    value = values.index_select(0, span.slots).transpose(0, 1)
    rows = query[span.start : span.stop]
    if span.stop - span.start == 1:
        # One token: a group's heads stand as the rows of its KV head, which is one product a group.
        grouped = rows.view(key.shape[0], -1, rows.shape[-1])
        result = scaled_dot_product_attention(grouped[None], key[None], value[None], scale=scaling)
        output[span.start] = result.view(rows.shape[1:])
        return
    result = scaled_dot_product_attention(
        rows.transpose(0, 1)[None],
        key[None],
        value[None],
        attn_mask=span.bias,
        is_causal=span.causal,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[0],
    )
    output[span.start : span.stop] = result[0].transpose(0, 1)


def register() -> None:
    """Make the backend selectable under ``ATTENTION_BACKEND``; call in every SGLang process."""
    from sglang.srt.arg_groups.choices import (
        ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
    )
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    if ATTENTION_BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([ATTENTION_BACKEND])
    register_attention_backend(ATTENTION_BACKEND)(_create)


def _create(runner: Any) -> Any:
    from prism_ray.engine.cpu.attention_backend import ExtendOnlyAttentionBackend

    if runner.page_size != 1:
        raise ValueError(
            f"attention backend {ATTENTION_BACKEND} needs page_size 1, not {runner.page_size}: for "
            "larger pages SGLang allocates with Triton kernels, which a CPU has not"
        )
    return ExtendOnlyAttentionBackend(runner)
