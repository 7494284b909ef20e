"""The SGLang side of the CPU attention: which layers it takes, and its place in a forward pass.

The computation itself is in ``attention``. Importing this module imports SGLang.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from prism_ray.engine.cpu.attention import Span, attend, spans


class ExtendOnlyAttentionBackend(TorchNativeAttnBackend):  # type: ignore[misc]
    """Plain decoder self-attention over the new tokens only; everything else is the parent's."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__(model_runner)
        self._spans: list[Span] = []

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Lay out the pass once; all its layers share slots and masks."""
        super().init_forward_metadata(forward_batch)
        mode = forward_batch.forward_mode
        if mode.is_idle():
            self._spans = []
            return
        if mode.is_decode():
            extend_lens = [1] * forward_batch.batch_size
            prefix_lens = [length - 1 for length in forward_batch.seq_lens.tolist()]
        else:
            extend_lens = forward_batch.extend_seq_lens.tolist()
            prefix_lens = forward_batch.extend_prefix_lens.tolist()
        table = self.req_to_token_pool.req_to_token
        rows = [table[index] for index in forward_batch.req_pool_indices.tolist()]
        self._spans = spans(rows, prefix_lens, extend_lens, self.token_to_kv_pool.dtype)

    def forward_extend(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Any:
        """[new tokens, heads * width] of the attention of the new tokens."""
        if not self._takes(layer, q):
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Any:
        """[requests, heads * width] of the attention of one token a request."""
        if not self._takes(layer, q):
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def _takes(self, layer: Any, q: Any) -> bool:
        windowed = layer.sliding_window_size is not None and layer.sliding_window_size > -1
        return (
            not windowed
            and not layer.is_cross_attention
            and layer.attn_type == AttentionType.DECODER
            and layer.qk_head_dim == layer.v_head_dim
            and self.token_to_kv_pool.get_key_buffer(layer.layer_id).dtype == q.dtype
        )

    def _forward(
        self, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, save_kv_cache: bool
    ) -> Any:
        if save_kv_cache and k is not None and v is not None:
            where = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = torch.empty_like(query)
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
        for span in self._spans:
            attend(span, query, keys, values, output, layer.scaling)
        return output.view(q.shape[0], -1)
