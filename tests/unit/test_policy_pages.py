"""docs/policies has a page for every registered policy, which names each of its parameters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prism_ray.policies import make_scheduler
from prism_ray.scheduling import POLICIES

PAGES = Path(__file__).parents[2] / "docs" / "policies"
SECTIONS = ("What it does.", "When to use it.", "Parameters.", "Cost.", "Source.")


def pages() -> dict[str, Path]:
    """By policy: the page whose title names it."""
    found: dict[str, Path] = {}
    for path in sorted(PAGES.glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0]
        for name in re.findall(r"`([^`]+)`", title):
            assert name not in found, f"{name} has two pages"
            found[name] = path
    return found


def parameters_of(policy: str) -> list[str]:
    """What the policy says it takes, when it is asked for something else."""
    with pytest.raises(ValueError, match="no parameter") as refused:
        make_scheduler(policy, {"no such parameter": 1})
    _, known, names = str(refused.value).partition("known: ")
    return names.split(", ") if known else []


def test_there_is_a_page_for_every_policy_and_none_for_others() -> None:
    assert set(pages()) == set(POLICIES)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_page_says_what_when_how_much_and_from_where(policy: str) -> None:
    text = pages()[policy].read_text(encoding="utf-8")
    for section in SECTIONS:
        assert f"**{section}**" in text, section


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_page_names_every_parameter(policy: str) -> None:
    text = pages()[policy].read_text(encoding="utf-8")
    if policy == "front-alignment":
        assert "(see `qas`)" in text, "its parameters are those of qas"
        return
    missing = [name for name in parameters_of(policy) if f"`{name}`" not in text]
    assert missing == []


def test_the_overview_links_every_page() -> None:
    overview = (PAGES / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", overview))
    assert linked == {path.name for path in pages().values()}
    table = overview.split("What holds for all")[0]
    assert {name for name in POLICIES if f"`{name}`" not in table} == set()
