"""What the documents point at is there: files, headings, series, settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from prism_ray.config import PrismConfig
from prism_ray.serving.exposition import series

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SERIES = re.compile(r"`(prism_[a-z0-9_]+)(?:\{[^`]*\})?`")
SUFFIXES = ("_bucket", "_sum", "_count")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_page_can_be_found_from_the_readme() -> None:
    found, open_ = {REPOSITORY / "README.md"}, [REPOSITORY / "README.md"]
    while open_:
        page = open_.pop()
        for link in LINK.findall(prose(page)):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in found:
                found.add(target)
                open_.append(target)
    docs = {page for page in PAGES if (REPOSITORY / "docs") in page.parents}
    assert {str(p.relative_to(REPOSITORY)) for p in docs - found} == set()


def test_series_that_documents_name_are_exposed() -> None:
    known = {name.removesuffix(s) for name in series() for s in ("", *SUFFIXES)}
    named = {name for page in PAGES for name in SERIES.findall(prose(page))}
    assert len(named) > 20
    unknown = {n for n in named if n not in known and not n.endswith("_")}
    assert unknown - {"prism_ray", "prism_qas"} == set()


def test_settings_that_the_operations_guide_names_exist() -> None:
    text = prose(REPOSITORY / "docs" / "operations.md")
    sections = {
        name: set(field.annotation.model_fields)  # type: ignore[union-attr]
        for name, field in PrismConfig.model_fields.items()
    }
    named = re.findall(rf"`({'|'.join(sections)})\.([a-z_]+)", text)
    assert len(named) > 15
    assert {f"{s}.{f}" for s, f in named if f not in sections[s]} == set()
