"""From the files of conf/evals to suites: pins are what is built, and what cannot be scored is refused early."""

from pathlib import Path
from typing import Any

import pytest

from evals.embedding.local_files import retrieval_suite, similarity_suite
from evals.generation.generated_code import GeneratedCode
from evals.generation.suite import LmEvalSuite
from evals.score import check_suite
from experiments import check_data
from experiments.config.build import check_config, instantiate_node
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import make_paths_absolute

CONF = Path(__file__).parents[2] / "conf" / "evals"
FILES = [path.stem for path in sorted(CONF.glob("*.yaml"))]
USER_VALUES = {
    "local_beir": ["evals.local_beir.folder=beir"],
    "local_sts": ["evals.local_sts.file=pairs.tsv"],
    "mteb": ["evals.mteb.tasks=[STSBenchmark]"],
    "lm_eval": ["evals.lm_eval.tasks=[winogrande]", f"evals.lm_eval.commit={'0' * 40}"],
}
REFUSED_AS_THEY_ARE = ("local_", "advbench", "lm_humaneval")  # without the user's files, commits or permission
OWN = {
    "_target_": "evals.benchmarks.mteb_suite",
    "name": "own",
    "library": compose(["evals=[sts_10]", "scale=none"]).resolved["evals"]["sts_10"]["library"],
    "instructions": "none",
    "tasks": {
        "BIOSSES": {
            "category": "STS",
            "dataset": "mteb/biosses-sts",
            "revision": "d3fb88f8f02e40887cd149695127462bbcf29b4a",
            "splits": ["test"],
            "metric": "cosine_spearman",
        }
    },
}


def settled(name: str, *overrides: str) -> dict[str, Any]:
    """Suite -> its settings, as a run's config holds them."""
    composed = compose([f"evals=[{name}]", "scale=none", *USER_VALUES.get(name, []), *overrides])
    return make_paths_absolute(composed.resolved["evals"])


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_conf_becomes_the_suite_that_it_pins(file: str) -> None:
    for name, settings in settled(file).items():
        suite = instantiate_node(settings, f"evals.{name}")
        assert suite.name == name
        for entry in suite.entries if isinstance(suite, LmEvalSuite) else ():
            code = isinstance(entry.source, GeneratedCode)
            assert entry.source.registered.config(functions=False) if code else entry.config()


@pytest.mark.parametrize("file", [name for name in FILES if not name.startswith(REFUSED_AS_THEY_ARE)])
def test_a_committed_suite_can_be_scored(file: str) -> None:
    for name, settings in settled(file).items():
        check_suite(instantiate_node(settings, f"evals.{name}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [
                "evals=[advbench_ir]",
                *(f"evals.{name}.instructions=none" for name in ("advbench_ir", "advbench_ir_dot")),
            ],
            "McGill-NLP/AdvBench-IR is not pinned",
        ),
        (["evals=[lm_humaneval]"], "allow it with run_generated_code=true"),
        (["evals=[local_sts]", "evals.local_sts.file=no.tsv"], "no.tsv is missing"),
        (["evals=[local_beir]", "evals.local_beir.folder=no"], "no/corpus.jsonl is missing"),
        (["evals=[sts_10]", "evals.sts_10.tasks.STS12.revision=" + "0" * 40], "STS12 is pinned at revision 0000"),
        (["evals=[sts_10]", "evals.sts_10.tasks.STS12.metric=pearson"], "STS12 is pinned at metric pearson"),
        (["evals=[sts_10]", "evals.sts_10.tasks.STS12.revision=null"], "is not pinned: it needs revision"),
        (["evals=[lm_gsm8k]", "evals.lm_gsm8k.split=train"], "gsm8k.yaml is pinned at split train"),
        (["evals=[lm_gsm8k]", "evals.lm_gsm8k.tasks.gsm8k.file=gsm9k.yaml"], "no task file gsm9k.yaml"),
        (["evals=[lm_gsm8k]", "evals.lm_gsm8k.committed=soon"], "check_data suites=lm_gsm8k` prints it"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line_before_any_work(overrides: list[str], message: str) -> None:
    config = make_paths_absolute(compose(["experiment=t4_ulme", "scale=tiny", *overrides]).resolved)
    with pytest.raises(UsageError, match=message) as refused:
        check_config(config)
    assert "\n" not in str(refused.value)


def test_a_suite_without_a_committed_digest_bears_its_own_name_until_it_is_cut() -> None:
    suite = instantiate_node(OWN, "evals.own")
    assert suite.name == "own" and len(suite.pins_digest) == 16
    assert instantiate_node(OWN | {"only": ["BIOSSES"]}, "evals.own").name == "own (subset)"


def test_the_digest_that_check_data_prints_is_the_one_to_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("evals.check_data.check_mteb_task", lambda source: "")
    assert list(check_data.check_suite_tasks("own", OWN)) == [("BIOSSES", "")]
    digest = instantiate_node(OWN, "evals.own").pins_digest
    assert f'committed: "{digest}"' in capsys.readouterr().out
    committed = OWN | {"committed": digest}
    assert list(check_data.check_suite_tasks("own", committed)) == [("BIOSSES", "")]
    assert not capsys.readouterr().out
    assert instantiate_node(committed, "evals.own").name == "own"
    assert instantiate_node(committed | {"metrics": ["cosine_pearson"]}, "evals.own").name == "own (changed)"


def test_files_of_the_users_own_are_looked_for_before_any_work(tmp_path: Path) -> None:
    for suite in (similarity_suite(file=str(tmp_path / "no.tsv")), retrieval_suite(folder=str(tmp_path))):
        with pytest.raises(ValueError, match="is missing"):
            check_suite(suite)
