"""A mirror that is not whole: what can be scored is, and what cannot is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset

from evals.averages import Mean
from evals.check_data import find_data_problems
from evals.embedding.suite import MtebSuite
from evals.embedding.tasks import HubTask
from evals.generation.suite import LmEvalSuite
from evals.instructions import Instructions
from evals.score import IncompleteSuiteError, Score, Subject
from evals.score_store import ScoreStore
from tests.evals.lexical import Lexical
from tests.evals.lm import committed, generator_of, subject_of
from tests.evals.mirrors import beir, cups, of, publish, revision, similarity, sums

STS, SCIFACT, CORE17 = "STSBenchmark", "SciFact", "Core17InstructionRetrieval"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    publish(tmp_path / "mirror", of(STS), similarity())
    publish(tmp_path / "mirror", of(SCIFACT), beir())
    return tmp_path / "mirror"


@pytest.fixture
def suite(mirror: Path) -> MtebSuite:
    sources = [HubTask(name=name, revision=revision(name), mirror=str(mirror)) for name in (SCIFACT, STS)]
    table = Instructions(name="none", tasks={name: {"query": ""} for name in (SCIFACT, STS)})
    means = [Mean(name="both", of=[SCIFACT, STS])]
    return MtebSuite(name="s", sources=sources, instructions=table, means=means)


@pytest.fixture
def score(suite: MtebSuite, tmp_path: Path) -> Callable[[Lexical], list[Score]]:
    return lambda embedder: suite.score(Subject(name="m", embedder=embedder), folder=tmp_path / "scores")


def remove(mirror: Path) -> None:
    shutil.rmtree(mirror / of(SCIFACT))


def cut(mirror: Path) -> None:
    """The corpus as a parquet file that lost its end."""
    folder = mirror / of(SCIFACT)
    file = folder / "corpus.parquet"
    Dataset.from_json(str(folder / "corpus-corpus.jsonl")).to_parquet(file)
    file.write_bytes(file.read_bytes()[:-20])
    (folder / "README.md").write_text((folder / "README.md").read_text().replace("corpus-corpus.jsonl", file.name))


def forget_readme(mirror: Path) -> None:
    (mirror / of(SCIFACT) / "README.md").unlink()


def lose_a_column(mirror: Path) -> None:
    file = mirror / of(SCIFACT) / "queries-queries.jsonl"
    file.write_text(file.read_text().replace('"text"', '"words"'))


def write_null(mirror: Path) -> None:
    file = mirror / of(SCIFACT) / "corpus-corpus.jsonl"
    file.write_text(file.read_text().replace('"title": ""', '"title": null'))


FAULTS = {
    remove: "fetch it with: hf download --repo-type dataset mteb/scifact",
    cut: "mteb/scifact",
    forget_readme: "mteb/scifact",
    lose_a_column: "rows of test queries have no text",
    write_null: 'rows of test corpus have null as their title: write ""',
}


@pytest.mark.parametrize(("fault", "said"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS])
def test_a_faulty_data_set_is_named_and_all_others_are_scored(
    mirror: Path, tmp_path: Path, suite: MtebSuite, score: Callable, fault: Callable, said: str
) -> None:
    fault(mirror)
    with pytest.raises(IncompleteSuiteError, match="1 tasks of suite s cannot be read: SciFact: ") as caught:
        score(Lexical())
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert [found.task for found in caught.value.scores] == [STS]
    assert "SciFact" in ScoreStore(folder=tmp_path / "scores", suite="s").skipped_tasks()["both"]
    (scifact, problem), sts = find_data_problems(suite)
    assert scifact == SCIFACT and said in problem and sts[0] == STS
    publish(mirror, of(SCIFACT), beir())
    mended = Lexical()
    assert [found.task for found in score(mended)] == [SCIFACT, STS, "both"]
    assert len(mended.read) == 7
    assert ScoreStore(folder=tmp_path / "scores", suite="s").skipped_tasks() == {}


@pytest.mark.usefixtures("as_in_production")  # the type checks ask a source for its revision, which it cannot tell
def test_an_lm_eval_task_that_cannot_be_read_is_named_and_all_others_are_scored(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, "allenai/winogrande", cups())
    suites = committed("lm_gsm8k", mirror, budget=4), committed("lm_winogrande", mirror)
    suite = LmEvalSuite(name="s", entries=[entry for one in suites for entry in one.entries])
    for fault in ("fetch it with: hf download --repo-type dataset openai/gsm8k", "JSON parse error"):
        with pytest.raises(IncompleteSuiteError, match="1 tasks of suite s cannot be read: gsm8k: ") as caught:
            suite.score(subject_of(generator_of(max_length=4096)), folder=tmp_path / "scores")
        assert fault in str(caught.value) and {found.task for found in caught.value.scores} == {"winogrande"}
        publish(mirror, "openai/gsm8k", sums(train=6))
        (mirror / "openai/gsm8k/main-test.jsonl").write_text('{"question": "What')
    publish(mirror, "openai/gsm8k", sums(train=6))
    again = generator_of(max_length=4096)
    scores = suite.score(subject_of(again), folder=tmp_path / "scores")
    assert {found.task for found in scores} == {"gsm8k", "winogrande"} and again.asked == 2


def test_row_counts_are_compared_with_the_published_ones(mirror: Path) -> None:
    publish(mirror, "allenai/winogrande", cups())
    publish(mirror, "openai/gsm8k", sums(train=6, test=3))
    publish(mirror, "openai/openai_humaneval", {("openai_humaneval", "test"): [{"task_id": "T", "prompt": ""}]})
    found = {
        name: dict(find_data_problems(committed(name, mirror)))
        for name in ("lm_winogrande", "lm_gsm8k", "lm_humaneval")
    }
    assert found["lm_winogrande"] == {"winogrande": "rows: 6 instead of 1267"}
    assert found["lm_gsm8k"] == {"gsm8k": "rows: 3 instead of 1319"}
    lacking = ["canonical_solution", "entry_point", "test"]
    assert found["lm_humaneval"] == {"humaneval": f"the columns {lacking} are missing"}
    whole = committed("lm_gsm8k", mirror, tasks={"gsm8k": {"file": "gsm8k/gsm8k.yaml", "rows": 3}})
    assert dict(find_data_problems(whole)) == {"gsm8k": ""}
