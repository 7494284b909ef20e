"""Segment ids and the cache of token ids."""

from __future__ import annotations

import threading
from typing import Any

from prism_ray.prompt import PromptLimits, Splitter
from prism_ray.prompt.identity import ID_BYTES, Identities
from prism_ray.prompt.token_cache import TokenCache

DOC = "The city council met on Tuesday to vote on the new harbour bridge."


def body(*labels: str, front: str = "Read:") -> dict[str, Any]:
    marks = [
        {"type": "text", "text": f"{n} {DOC}", "prism": {"segment": label, "reorderable": True}}
        for n, label in enumerate(labels)
    ]
    first = {"type": "text", "text": front}
    return {"messages": [{"role": "user", "content": [first, *marks]}]}


def segment_ids(
    splitter: Splitter, tenant: bytes, *labels: str, front: str = "Read:"
) -> list[bytes]:
    return [s.id for s in splitter.chat(body(*labels, front=front), tenant).skeleton.segments]


def test_an_id_is_of_the_text_and_not_of_its_label_or_place(builtin: Splitter) -> None:
    ids = segment_ids(builtin, b"t", "a", "b")
    assert ids == segment_ids(builtin, b"t", "x", "y", front="Look here:")
    assert len(set(ids)) == 2
    assert all(len(i) == ID_BYTES for i in ids)


def test_tenants_and_secrets_share_no_id(builtin: Splitter) -> None:
    other = Splitter(builtin._tokenizer, PromptLimits(), b"another secret")
    everyone = [
        segment_ids(builtin, b"t", "a", "b"),
        segment_ids(builtin, b"u", "a", "b"),
        segment_ids(other, b"t", "a", "b"),
    ]
    assert len({i for ids in everyone for i in ids}) == 6


def test_what_a_text_is_used_for_tells_ids_apart() -> None:
    names = Identities(b"s", b"t")
    kinds = [names.system("x", [1]), names.segment("x", [1]), names.gap("x", [1])]
    assert len({*kinds, names.tokens_of("x"), names.tokens_of("x", leading=True)}) == 5


def test_fields_cannot_run_into_each_other() -> None:
    assert Identities(b"s", b"ab").segment("c", []) != Identities(b"s", b"a").segment("bc", [])


def test_equal_text_with_other_tokens_has_another_id() -> None:
    names = Identities(b"s", b"t")
    assert names.segment("x", [1, 2]) != names.segment("x", [1, 3])


def test_a_repeated_segment_is_not_tokenized_again(builtin: Splitter) -> None:
    splitter = Splitter(builtin._tokenizer, PromptLimits(), b"fresh secret")
    cache = builtin._tokenizer.cache
    segment_ids(splitter, b"t", "a", "b")
    misses = cache.misses
    segment_ids(splitter, b"t", "a", "b")
    assert cache.misses == misses
    segment_ids(splitter, b"u", "a", "b")
    assert cache.misses > misses


class TestTokenCache:
    def test_it_forgets_the_least_recently_used_when_it_is_full(self) -> None:
        cache = TokenCache(max_tokens=3 * (32 + 10))
        for key in (b"a", b"b", b"c", b"a", b"d"):
            cache.get(key, lambda: [7] * 10)
            cache.check_integrity()
        misses = cache.misses
        cache.get(b"a", list)
        assert cache.misses == misses
        cache.get(b"b", lambda: [7] * 10)
        assert cache.misses == misses + 1
        assert len(cache) == 3

    def test_what_is_larger_than_the_cache_passes_through(self) -> None:
        cache = TokenCache(max_tokens=50)
        assert list(cache.get(b"a", lambda: range(100))) == list(range(100))
        assert len(cache) == 0

    def test_threads_may_share_it(self) -> None:
        cache = TokenCache(max_tokens=40 * 20)

        def work(offset: int) -> None:
            for n in range(2000):
                key = (n * 7 + offset) % 60
                assert list(cache.get(key.to_bytes(1, "big"), lambda k=key: [k] * 8)) == [key] * 8

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cache.check_integrity()
