"""The committed suites: what they pin is what the installed libraries run, and a cut suite bears another name."""

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mteb
import pytest
from lm_eval import tasks as lm_eval_tasks

from evals import advbench_ir as advbench
from evals.averages import Mean
from evals.benchmarks import lm_suite, mteb_suite
from evals.embedding.suite import MtebSuite
from evals.generation.generated_code import GeneratedCode
from evals.generation.suite import LmEvalSuite
from evals.instructions import TABLES_FOLDER, read_instructions
from experiments.config.compose import compose

CONF = Path(__file__).parents[2] / "conf" / "evals"
WITHOUT_USER_VALUES = [path.stem for path in sorted(CONF.glob("*.yaml")) if "???" not in path.read_text()]
SUITES: dict[str, dict[str, Any]] = compose([f"evals=[{','.join(WITHOUT_USER_VALUES)}]", "scale=none"]).resolved[
    "evals"
]
FACTORIES = {
    "evals.benchmarks.mteb_suite": mteb_suite,
    "evals.benchmarks.lm_suite": lm_suite,
    "evals.advbench_ir.suite": advbench.suite,
}
PINNED = {name: suite for name, suite in SUITES.items() if suite["_target_"] in FACTORIES}
MTEB = [name for name, suite in PINNED.items() if suite["_target_"].endswith("mteb_suite")]
LM = [name for name, suite in PINNED.items() if suite["_target_"].endswith("lm_suite")]

RETRIEVAL = [
    "ArguAna", "CQADupstackGamingRetrieval", "CQADupstackUnixRetrieval", "ClimateFEVERHardNegatives",
    "FEVERHardNegatives", "FiQA2018", "HotpotQAHardNegatives", "SCIDOCS", "TRECCOVID", "Touche2020Retrieval.v3",
]  # fmt: skip
LITE = [
    "ArguAna", "ClimateFEVERHardNegatives", "AskUbuntuDupQuestions", "ArXivHierarchicalClusteringP2P",
    "MedrxivClusteringP2P.v2", "SprintDuplicateQuestions", "Banking77Classification", "ImdbClassification",
    "BIOSSES", "STS17",
]  # fmt: skip


def made(name: str, **changes: Any) -> MtebSuite | LmEvalSuite:
    suite = {key: value for key, value in PINNED[name].items() if key != "_target_"} | {"mirror": None} | changes
    if "means" in suite:
        suite["means"] = [Mean(**{k: v for k, v in mean.items() if k != "_target_"}) for mean in suite["means"]]
    return FACTORIES[PINNED[name]["_target_"]](**suite)


@pytest.mark.parametrize("name", PINNED)
def test_every_committed_suite_is_the_whole_one_under_its_own_name(name: str) -> None:
    assert made(name).name == name


@pytest.mark.parametrize("name", MTEB)
def test_pins_are_what_the_installed_mteb_reads(name: str) -> None:
    assert PINNED[name]["library"] == version("mteb")
    for source in made(name).sources:
        task = source.build()
        metadata = task.metadata
        pins = PINNED[name]["tasks"][source.name]
        assert pins["revision"] == metadata.dataset["revision"] and re.fullmatch(r"[0-9a-f]{40}", pins["revision"])
        assert (pins["dataset"], pins["metric"]) == (metadata.dataset["path"], metadata.main_score)
        assert pins["category"] == metadata.type
        assert pins["splits"] == list(task.eval_splits) and pins.get("subsets", ["default"]) == list(task.hf_subsets)


@pytest.mark.parametrize(
    ("name", "benchmark", "chosen"),
    [
        ("mteb_eng_v2", "MTEB(eng, v2)", lambda task: True),
        ("bright", "BRIGHT(v1.1)", lambda task: "Long" not in task),
        ("longembed", "LongEmbed", lambda task: True),
        ("followir", "FollowIR", lambda task: True),
    ],
)
def test_a_benchmark_of_mtebs_is_all_of_it(name: str, benchmark: str, chosen: Any) -> None:
    known = {task.metadata.name: task for task in mteb.get_benchmark(benchmark).tasks if chosen(task.metadata.name)}
    assert set(PINNED[name]["tasks"]) == set(known)
    for task, pins in PINNED[name]["tasks"].items():
        assert pins["splits"] == list(known[task].eval_splits)
        assert pins.get("subsets", ["default"]) == list(known[task].hf_subsets)


def test_the_lists_are_those_of_the_papers() -> None:
    eng = PINNED["mteb_eng_v2"]["tasks"]
    sizes: dict[str, int] = {}
    for pins in eng.values():
        sizes[pins["category"]] = sizes.get(pins["category"], 0) + 1
    assert sizes == {
        "Retrieval": 10, "Reranking": 2, "Clustering": 8, "PairClassification": 3, "Classification": 8, "STS": 9,
        "Summarization": 1,
    }  # fmt: skip
    assert {task for task, pins in eng.items() if pins["category"] == "Retrieval"} == set(RETRIEVAL)
    assert list(PINNED["mteb_lite"]["tasks"]) == LITE
    counts = {"mteb_15": 15, "sts_10": 10, "bright": 12, "bright_diffembed": 4, "longembed": 6, "followir": 3,
              "lm_mmlu": 57, "lm_mmlu_pro": 14}  # fmt: skip
    assert {name: len(PINNED[name]["tasks"]) for name in counts} == counts


def means(name: str) -> Mapping[str, Any]:
    return {mean["name"]: mean for mean in PINNED[name]["means"]}


def test_averages_are_by_task_by_category_and_as_each_paper_states() -> None:
    eng = means("mteb_eng_v2")
    assert set(eng["mean_task"]["of"]) == set(PINNED["mteb_eng_v2"]["tasks"])
    assert len(eng["mean_category"]["of"]) == 7 and set(eng["mean_category"]["of"]) < set(eng)
    assert set(eng["mean_retrieval"]["of"]) == set(RETRIEVAL)
    long = means("longembed")
    assert len(long["mean_diffembed"]["of"]) == 8 and len(long["mean_task"]["of"]) == 6
    for task in ("passkey", "needle"):
        assert [len(long[f"{task}_{part}"]["of"]) for part in ("to_4k", "over_4k")] == [5, 3]
    assert means("followir")["mean_quality"]["of"][1] == "News21InstructionRetrieval:og.ndcg_at_5"
    for name in ("lm_mmlu", "lm_mmlu_pro"):
        (mean,) = means(name).values()
        assert mean["weighted"] and set(mean["of"]) == set(PINNED[name]["tasks"])


@pytest.mark.parametrize("name", PINNED)
def test_a_cut_suite_bears_another_name(name: str) -> None:
    one = made(name).tasks[:1]
    cut = made(name, only=list(one))
    assert cut.name == f"{name} (subset)" and cut.tasks == one


def test_a_changed_suite_bears_another_name() -> None:
    tasks = dict(PINNED["mteb_lite"]["tasks"])
    tasks.pop("STS17")
    assert made("mteb_lite", tasks=tasks).name == "mteb_lite (changed)"
    assert made("lm_gsm8k", budget=256).name == "lm_gsm8k (changed)"
    assert made("lm_winogrande", shots=0).name == "lm_winogrande (changed)"
    assert made("advbench_ir", words=50).name == "advbench_ir (changed)"
    assert made("lm_humaneval", run_generated_code=True).name == "lm_humaneval"


@pytest.mark.parametrize(("name", "pin"), [("mteb_lite", pin) for pin in ("revision", "dataset", "splits", "metric")]
                         + [("lm_gsm8k", pin) for pin in ("file", "rows")])  # fmt: skip
def test_a_task_without_a_pin_is_refused(name: str, pin: str) -> None:
    (task, pins), *_ = PINNED[name]["tasks"].items()
    without = {key: value for key, value in pins.items() if key != pin}
    with pytest.raises(ValueError, match=f"task {task} of suite {name} is not pinned: it needs {pin}"):
        made(name, tasks={task: without})


@pytest.mark.parametrize("name", LM)
def test_a_suite_without_one_of_its_settings_is_refused(name: str) -> None:
    settings = {key: value for key, value in PINNED[name].items() if key not in ("_target_", "means")}
    for setting in ("commit", "split", "shots", "template", "multiturn", "budget", "metrics", "library"):
        with pytest.raises(TypeError, match=setting):
            lm_suite(**{key: value for key, value in settings.items() if key != setting})


def test_an_unknown_task_or_another_library_is_refused() -> None:
    with pytest.raises(ValueError, match=r"suite mteb_lite has no task 'STS71'; did you mean STS17\?"):
        made("mteb_lite", only=["STS71"])
    with pytest.raises(ValueError, match=r"pinned at mteb 2\.0\.0, but .* is installed: pip install mteb==2\.0\.0"):
        made("mteb_lite", library="2.0.0")


@pytest.mark.parametrize("name", LM)
def test_pins_are_what_the_installed_lm_eval_reads(name: str) -> None:
    suite = PINNED[name]
    assert suite["library"] == version("lm_eval") and re.fullmatch(r"[0-9a-f]{40}", suite["commit"])
    entries = made(name).entries
    for entry in entries if len(entries) < 20 else entries[::19]:
        if isinstance(entry.source, GeneratedCode):
            with pytest.raises(ValueError, match="run_generated_code=true"):
                entry.config()
            continue
        config = entry.config()
        assert config["dataset_path"] == suite["dataset"] and config["dataset_kwargs"]["revision"] == suite["commit"]
        assert (config.get("test_split") or config.get("validation_split")) == suite["split"]
        assert config["num_fewshot"] == suite["shots"]
        filters = {one["name"] for one in config.get("filter_list") or [{"name": "none"}]}
        assert {metric.partition(",")[2] or "none" for metric in suite["metrics"]} <= filters
        if suite["budget"]:
            assert config["generation_kwargs"]["max_gen_toks"] == suite["budget"]


def test_the_rows_are_as_many_as_published() -> None:
    rows = {name: sum(pins["rows"] for pins in PINNED[name]["tasks"].values()) for name in LM}
    assert rows == {
        "lm_mmlu": 14042, "lm_gsm8k": 1319, "lm_gsm8k_rows": 1319, "lm_mmlu_pro": 12032, "lm_truthfulqa": 817,
        "lm_winogrande": 1267, "lm_humaneval": 164, "lm_humaneval_plus": 164,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "folder"), [("lm_mmlu", "mmlu/default"), ("lm_mmlu_pro", "mmlu_pro")])
def test_a_group_of_lm_evals_is_all_of_it(name: str, folder: str) -> None:
    files = sorted((Path(lm_eval_tasks.__file__).parent / folder).glob(f"{folder.partition('/')[0]}_*.yaml"))
    assert [f"{folder}/{file.name}" for file in files] == [pins["file"] for pins in PINNED[name]["tasks"].values()]


def test_every_table_that_a_suite_uses_knows_its_tasks_and_every_paper_has_one() -> None:
    for name in (*MTEB, "advbench_ir", "advbench_ir_dot"):
        made(name)  # a table without a row for a task is refused
        made(name, instructions="none")
    committed = {path.stem for path in TABLES_FOLDER.glob("*.yaml")}
    assert {"llm2vec", "llm2vec_gen", "gritlm", "diffembed", "mteb", "none"} <= committed
    for table in ("llm2vec", "llm2vec_gen", "gritlm", "mteb"):
        for name in ("mteb_eng_v2", "mteb_lite", "bright", "bright_diffembed"):
            made(name, instructions=table)
    assert (
        read_instructions("diffembed")
        .instruction_for("BrightAopsRetrieval", "query")
        .startswith("Given a problem, rretrieve the relevant")
    )
