"""Keys lie under the application's name, and names cannot break out of it."""

from __future__ import annotations

import pytest

from prism_ray.telemetry.connection import safe_url
from prism_ray.telemetry.keys import Keys


def test_every_key_lies_under_the_application() -> None:
    keys = Keys("shop")
    every = [keys.heartbeat, keys.replicas, keys.segments, keys.decisions]
    every += [keys.replica("a#1"), keys.checkpoint("e2")]
    assert all(k.startswith("prism:shop:") for k in every)
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 65, "a\n", "ä"])
def test_a_name_that_is_no_plain_word_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must match"):
        Keys(name)
    with pytest.raises(ValueError, match="must match"):
        Keys("app").checkpoint(name)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:7000/0", "redis://host:7000/0"),
        ("redis://:secret@host", "redis://host:6379"),
        ("unix://:secret@/run/store.sock?password=secret", "unix:///run/store.sock"),
        ("rediss://host:1/2?password=secret", "rediss://host:1/2"),
    ],
)
def test_a_url_for_people_has_no_password(url: str, shown: str) -> None:
    assert safe_url(url) == shown
