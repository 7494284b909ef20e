from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.cli import main
from loadgen.reproduce.claims import load_claims
from loadgen.reproduce.experiments import EXPERIMENTS, FIRST_SEED, experiments
from loadgen.reproduce.kept import FIGURES
from loadgen.reproduce.measures import BOUNDS
from loadgen.reproduce.page import write_page
from loadgen.reproduce.runs import todo


def reproduce(out: Path, *more: str) -> str:
    command = ["reproduce", "--quick", "--only", "cold-lane", "--out", str(out), *more]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return (out / "index.html").read_text(encoding="utf-8")


def verdict(page: str, claim: str) -> str:
    row = page[page.index(f'<tr id="{claim}" class="claim">') :]
    found = re.search(r'<span class="[^"]*">([^<]+)</span>', row)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("reproduction")
    return out, reproduce(out)


def test_the_page_stands_with_its_plots_and_tables(kept: tuple[Path, str]) -> None:
    out, page = kept
    sources = re.findall(r'<img src="([^"]+)"', page)
    assert sources
    assert all((out / source).read_bytes().startswith(b"\x89PNG") for source in sources)
    for table in ("results.csv", "claims.csv", "runs.csv"):
        assert len((out / table).read_text(encoding="utf-8").splitlines()) > 1
    assert "Every figure on this page is simulated" in page
    assert "quick run" in page


def test_every_experiment_and_plot_says_simulated(kept: tuple[Path, str]) -> None:
    _, page = kept
    assert all("(simulated)" in title for title in re.findall(r"<h3[^>]*>([^<]+)</h3>", page))
    assert all("simulated" in text for text in re.findall(r'<img [^>]*alt="([^"]+)"', page))


def test_what_is_there_is_not_run_again(kept: tuple[Path, str]) -> None:
    out, page = kept
    files = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*.json")}
    assert reproduce(out) == page
    assert {file: file.stat().st_mtime_ns for file in out.glob("runs/*/*.json")} == files


def test_the_table_of_runs_alone_says_the_same_and_is_gone_on_from(
    kept: tuple[Path, str], tmp_path: Path
) -> None:
    out, page = kept
    shutil.copy(out / "runs.csv", tmp_path)
    assert reproduce(tmp_path) == page
    assert not list(tmp_path.glob("runs/*/*.json")), "nothing was run again"
    for table in ("results.csv", "claims.csv", "runs.csv"):
        assert (tmp_path / table).read_bytes() == (out / table).read_bytes()


def test_a_table_that_lacks_a_column_is_named(kept: tuple[Path, str], tmp_path: Path) -> None:
    table = (kept[0] / "runs.csv").read_text(encoding="utf-8")
    (tmp_path / "runs.csv").write_text(table.replace("prompts_hash", "x", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs\.csv, line 2: KeyError\('prompts_hash'\)"):
        write_page(tmp_path, [], quick=True)


def test_the_table_of_runs_has_every_figure_that_a_claim_needs() -> None:
    for claim in load_claims():
        needed = {*claim.metrics, *filter(None, [claim.best_by]), *BOUNDS.values()}
        assert needed <= set(FIGURES.values()), claim.id


def test_changing_a_result_changes_the_verdict(kept: tuple[Path, str], tmp_path: Path) -> None:
    """Runs are copied, and those without a cold lane get the paper's hit rate and tail by hand."""
    out, page = kept
    assert verdict(page, "cold-0-p99") != "reproduced"
    for file in out.glob("runs/*/*.json"):
        run = json.loads(file.read_text(encoding="utf-8"))
        if run["arm"] == "qas policy.q_cold=0":
            run["ttft_s"]["p99"] *= 1.5
            run["hit_rate"] += 0.2
        copy = tmp_path / file.relative_to(out)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(json.dumps(run), encoding="utf-8")
    write_page(tmp_path, [e for e in experiments(quick=True) if e.name == "cold-lane"], quick=True)
    changed = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert verdict(changed, "cold-0-p99") == "reproduced"
    assert verdict(changed, "cold-0-hit") == "reproduced"
    assert verdict(changed, "cold-4-p99") == verdict(page, "cold-4-p99")


def test_a_file_that_is_no_run_is_named(kept: tuple[Path, str], tmp_path: Path) -> None:
    broken = tmp_path / "runs" / "paper-4b" / "x.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.json is no run"):
        write_page(tmp_path, [])


@pytest.mark.parametrize("quick", [False, True])
def test_every_claim_is_answered_by_runs_of_some_experiment(quick: bool) -> None:
    """At every rate of its reading; of a quick run, at one at least."""
    ran = {
        (entry.directory.name, entry.step.arm, round(entry.step.spec.qps or 0.0, 6))
        for entry in todo(Path("out"), experiments(quick=quick))
    }
    for claim in load_claims():
        for reading in claim.readings:
            wanted = [(reading.setting, claim.arm_of(reading))]
            wanted += [(reading.other_setting or reading.setting, arm) for arm in claim.against]
            rates = [
                qps
                for qps in reading.qps()
                if all((*side, round(qps, 6)) in ran for side in wanted)
            ]
            if not quick:
                assert rates == list(reading.qps()), (claim.id, reading.name)


def test_seeds_are_fresh_paired_and_enough() -> None:
    for experiment in EXPERIMENTS:
        assert experiment.first_seed >= FIRST_SEED or experiment.name == "screening"
        assert experiment.seeds >= 5 or experiment.name == "screening"


def test_papers_claims_have_their_source() -> None:
    claims = load_claims()
    assert all(claim.where for claim in claims)
    assert {claim.source for claim in claims} == {"prism", "preble", "ours"}
    assert len(claims) > 60
