"""A contract test for each of SGLang's interfaces that DART stands on: what moved is named."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from prism_ray.dart.sglang_plugin import OPTIONS_REFUSED
from prism_ray.engine.sglang_version import SUPPORTED_SGLANG, check_sglang_version

TREE = "sglang.srt.mem_cache.unified_cache.unified_tree_core:UnifiedTreeCore"
FULL = "sglang.srt.mem_cache.unified_cache.components:FullComponent"
CACHE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
REGISTRY = "sglang.srt.mem_cache.registry"
CORES = "sglang.srt.mem_cache.unified_cache.tree_core_registry"

CALLS = [
    (f"{REGISTRY}:register_radix_cache_backend", "name, factory"),
    (f"{REGISTRY}:get_radix_cache_factory", "name"),
    (f"{REGISTRY}:create_unified_radix_cache", "ctx, cache_class"),
    (f"{CORES}:register_tree_core_backend", "name, factory"),
    (f"{CORES}:get_tree_core_factory", "name"),
    (f"{TREE}.__init__", "self, params, components"),
    (f"{TREE}.reset", "self"),
    (f"{TREE}.begin_insert", "self, params"),
    (f"{TREE}._new_node", "self, priority"),
    (f"{TREE}._register_node", "self, node"),
    (f"{TREE}._unregister_node", "self, node"),
    (f"{TREE}._split_node", "self, key, child, split_len"),
    (
        f"{TREE}._add_new_node",
        "self, parent, key, value, priority, session_id, rotation_base",
    ),
    (f"{TREE}._touch_node", "self, node"),
    (f"{TREE}._inc_hit_count_and_check", "self, node"),
    (f"{TREE}._update_evictable_leaf_sets", "self, node"),
    (f"{FULL}.reclaimable_value_len", "self, node"),
    (f"{FULL}._evict_device_start", "self, request_cnt"),
    (
        f"{FULL}._evict_device_next_node",
        "self, tracker, device_frees, host_frees, cache_actions",
    ),
    (f"{FULL}._evict_device_end", "self"),
    (f"{CACHE}.match_prefix", "self, params"),
    (f"{CACHE}.checkpoint", "self, req, up_to, kwargs"),
    (
        f"{CACHE}.finish_storage_prefetch_admission",
        "self, request, fulfilled_tokens, reason",
    ),
    (f"{CACHE}.finish", "self, handle, outcome"),
    (f"{CACHE}.reset", "self"),
    (f"{CACHE}.sanity_check", "self"),
    ("sglang.srt.mem_cache.radix_cache:RadixKey.match_at", "self, other, offset, page_size"),
    ("sglang.srt.mem_cache.radix_cache:RadixKey.child_key_at", "self, offset, page_size"),
    ("sglang.srt.mem_cache.radix_cache:RadixKey.page_aligned", "self, page_size"),
]
FIELDS = [
    (
        "sglang.srt.mem_cache.cache_init_params:CacheInitParams",
        "tree_core_backend component_registry_override eviction_policy attn_cp_size "
        "token_to_kv_pool_allocator",
    ),
    (
        "sglang.srt.mem_cache.base_prefix_cache:InsertParams",
        "key value prev_prefix_len inserted_len priority session_id rotation_base",
    ),
    ("sglang.srt.mem_cache.base_prefix_cache:MatchPrefixParams", "key req"),
    (
        "sglang.srt.mem_cache.base_prefix_cache:InsertResult",
        "prefix_len mamba_exist last_device_node",
    ),
    (
        "sglang.srt.mem_cache.registry:TreeCacheBuildContext",
        "server_args params is_hybrid_swa is_hybrid_ssm",
    ),
    ("sglang.srt.managers.kv_hints:KvHintsEnvelope", "protocol_version message_id actions"),
    ("sglang.srt.managers.kv_hints:KvHintAction", "action_type action_version payload"),
]


def find(path: str) -> Any:
    module, _, name = path.partition(":")
    found = __import__(module, fromlist=["_"])
    for part in name.split("."):
        found = getattr(found, part, None)
        assert found is not None, f"SGLang has no {path} any more: DART stands on it"
    return found


@pytest.mark.parametrize(("path", "parameters"), CALLS, ids=[path for path, _ in CALLS])
def test_a_call_that_dart_makes_or_overrides_has_the_same_parameters(path, parameters):
    now = ", ".join(inspect.signature(inspect.unwrap(find(path))).parameters)
    assert now == parameters, f"{path} takes ({now}) now; DART was written for ({parameters})"


@pytest.mark.parametrize(("path", "names"), FIELDS, ids=[path for path, _ in FIELDS])
def test_a_value_that_dart_reads_has_the_same_fields(path, names):
    kind = find(path)
    known = getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    missing = [name for name in names.split() if name not in known]
    assert not missing, f"{path} has lost {missing}: DART reads or writes them"


def test_the_node_has_what_our_node_inherits():
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    from prism_ray.dart.sglang_plugin_tree import DartNode

    node = DartNode((ComponentType.FULL,))
    for name in ("id", "parent", "children", "key", "last_access_time", "hit_count", "priority"):
        assert hasattr(node, name), f"SGLang's nodes have no {name} any more"
    taken = set(vars(node)) - {
        "start",
        "owner",
        "span_start",
        "anchored",
        "protected",
        "queued_key",
    }
    from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

    assert taken == set(vars(UnifiedTreeNode((ComponentType.FULL,)))), (
        "a name of ours is SGLang's now"
    )


def test_a_request_has_what_the_cache_reads_and_can_be_a_weak_key():
    import weakref
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = Req("r", "", array("q", [1, 2]), SamplingParams())
    assert request.kv_hints is None
    assert list(request.origin_input_ids) == [1, 2]
    weakref.WeakKeyDictionary()[request] = True


def test_every_option_that_dart_refuses_is_an_option_of_sglang_with_our_default():
    from sglang.srt.server_args import ServerArgs

    options = ServerArgs(model_path="somewhere").resolved_dict()
    moved = {name: options.get(name, "gone") for name in OPTIONS_REFUSED}
    assert moved == dict(OPTIONS_REFUSED), "SGLang's options have moved: DART refuses by them"


def test_the_installed_sglang_is_the_supported_one():
    check_sglang_version()
    assert SUPPORTED_SGLANG


def context_of(options: dict[str, Any], **facts: Any) -> Any:
    from types import SimpleNamespace

    resolved = {**OPTIONS_REFUSED, **options}
    plain = {"is_hybrid_swa": False, "is_hybrid_ssm": False}
    return SimpleNamespace(
        server_args=SimpleNamespace(resolved_dict=lambda: resolved),
        params=SimpleNamespace(
            attn_cp_size=facts.pop("attn_cp_size", 1), token_to_kv_pool_allocator=None
        ),
        **{**plain, **facts},
    )


@pytest.mark.parametrize(
    ("options", "facts", "named"),
    [
        ({}, {}, []),
        ({"enable_dp_attention": True}, {}, ["--enable-dp-attention True"]),
        ({"pp_size": 2}, {}, ["--pp-size 2"]),
        ({"speculative_algorithm": "EAGLE"}, {}, ["--speculative-algorithm EAGLE"]),
        ({"enable_hierarchical_cache": True}, {}, ["--enable-hierarchical-cache True"]),
        ({"radix_eviction_policy": "lfu"}, {}, ["--radix-eviction-policy lfu"]),
        ({}, {"is_hybrid_swa": True}, ["hybrid sliding-window models"]),
        ({}, {"is_hybrid_ssm": True}, ["hybrid Mamba models"]),
        ({}, {"attn_cp_size": 2}, ["context parallelism"]),
        (
            {"disaggregation_mode": "decode", "enable_lmcache": True},
            {},
            ["--enable-lmcache True", "--disaggregation-mode decode"],
        ),
    ],
)
def test_what_dart_cannot_do_is_refused_by_its_option(options, facts, named):
    from prism_ray.dart.sglang_plugin import unsupported

    assert unsupported(context_of(options, **facts)) == named


def test_the_refusal_names_everything_at_once():
    from prism_ray.dart.sglang_plugin import UnsupportedByDart, build_cache

    context = context_of({"pp_size": 2, "enable_flexkv": True})
    with pytest.raises(UnsupportedByDart, match=r"--enable-flexkv True, --pp-size 2"):
        build_cache(context)
