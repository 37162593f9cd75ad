"""The papers' data and hyper-parameters: taken up at scale=paper, at no other, and equal to what is written here."""

from dataclasses import dataclass
from typing import Any

import pytest

from experiments.config.build import from_config
from experiments.config.compose import compose, list_options
from experiments.config.identity import Run, identify

COMMITS = [f"revisions.{name}={'a' * 40}" for name in compose([]).config.revisions]
TRAINED = [
    e for e in list_options("experiment") if e.startswith(("t1_", "t3_", "t4_")) and e not in ("t1_base", "t1_echo")
]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a paper's run is, as ULME's neighbours print or release it; the sources stand in conf/recipe/paper.

    `rows`: a step, by stream; `last`: the steps that are made; `rate_left`: share of the peak rate at the last of them.
    """

    rows: dict[str, int]
    rate: float
    warmup: float
    last: int
    rate_left: float
    lengths: tuple[int, int, int]
    temperature: float | None = None
    adapters: bool = False


LLM2VEC = Paper(
    rows={"embedding": 512},
    rate=2e-4,
    warmup=300,
    last=1000,
    rate_left=1 - 699 / 8490,
    lengths=(512, 512, 512),
    temperature=0.02,
    adapters=True,
)
ULME = Paper(
    rows={"embedding": 512, "generative": 64},
    rate=2e-4,
    warmup=300,
    last=1000,
    rate_left=1 - 699 / 8490,
    lengths=(512, 512, 2048),
    temperature=0.02,
    adapters=True,
)
GRITLM = Paper(
    rows={"embedding": 2048, "generative": 256},
    rate=2e-5,
    warmup=38,
    last=1253,
    rate_left=1 / 1215,
    lengths=(256, 2048, 2048),
    temperature=0.02,
)
PAPERS = {
    "t1_mntp": Paper(rows={"text": 32}, rate=5e-5, warmup=0, last=1000, rate_left=1 - 999 / 21000,
                     lengths=(512, 512, 512), adapters=True),
    "t1_llm2vec_unsup": Paper(rows={"text": 128}, rate=3e-5, warmup=0, last=1000, rate_left=1 - 999 / 23400,
                              lengths=(512, 512, 512), temperature=0.05, adapters=True),
    **dict.fromkeys(("t1_llm2vec", "t1_causal_mean", "t1_e5", "t1_nv_embed", "t1_lora_off"), LLM2VEC),
    **dict.fromkeys(("t1_gritlm", "t1_gritlm_causal"), GRITLM),
    "t1_gem": Paper(rows={"text": 32}, rate=1e-5, warmup=0, last=1000, rate_left=1 / 1000, lengths=(512, 512, 512),
                    temperature=0.05),
    "t1_llm2vec_gen": Paper(rows={"generative": 32}, rate=3e-4, warmup=100, last=5000, rate_left=1 - 4899 / 19900,
                            lengths=(512, 512, 512)),
    "t1_generative": Paper(rows={"generative": 64}, rate=2e-4, warmup=300, last=1000, rate_left=1 - 699 / 8490,
                           lengths=(512, 512, 2048), adapters=True),
    **dict.fromkeys([e for e in TRAINED if e == "t1_ulme" or e.startswith(("t3_", "t4_"))], ULME),
}  # fmt: skip


def at_paper(experiment: str, *more: str) -> Run:
    return identify(compose([f"experiment={experiment}", "scale=paper", *COMMITS, *more]))


def test_every_experiment_that_trains_is_held_to_its_paper() -> None:
    assert {*PAPERS, "t1_hyde"} == set(TRAINED)


@pytest.mark.parametrize("experiment", PAPERS)
def test_a_papers_run_has_its_papers_rows_rate_schedule_lengths_and_temperature(experiment: str) -> None:
    paper = PAPERS[experiment]
    made = from_config(at_paper(experiment, "runtime.device=cpu").config)
    optim = made.optim
    assert {name: stream.rows_per_step for name, stream in made.data.streams.items()} == paper.rows
    assert optim.learning_rate == paper.rate and optim.last_step == paper.last
    assert optim.learning_rate_factor(optim.last_step - 1) == pytest.approx(paper.rate_left)
    first_at_peak = next(step for step in range(optim.steps) if optim.learning_rate_factor(step) == 1.0)
    assert first_at_peak == max(0, paper.warmup - 1)
    assert (made.lengths.query, made.lengths.document, made.lengths.answer) == paper.lengths
    if paper.temperature is not None:
        assert made.method.temperature == paper.temperature
    adapters = (getattr(made.trainable, "r", None), getattr(made.trainable, "alpha", None))
    assert adapters == ((16, 32) if paper.adapters else (None, None))


def test_a_recipe_replaces_what_an_experiment_chose_for_small_runs_and_keeps_what_it_is_named_for() -> None:
    assert at_paper("t1_gem").config["method"]["ramp_start"] == 100
    assert at_paper("t1_hyde").config["method"]["max_new_tokens"] == 500
    assert at_paper("t1_causal_mean").config["method"]["readout"] == "weighted_mean"
    assert at_paper("t1_lora_off").config["trainable"]["embed_only"] is True
    assert at_paper("t1_e5").config["template"]["name"] == "e5"
    assert at_paper("t1_gritlm").config["template"]["name"] == "gritlm"
    assert at_paper("t4_ulme_n8").config["method"]["slots"] == 8
    assert at_paper("t4_no_pred").config["method"]["predictive_weight"] == 0.0


def test_a_papers_parents_and_teachers_have_their_own_recipes() -> None:
    run = at_paper("t1_llm2vec_gen", "backbone=qwen3_1_7b")
    streams = run.config["data"]["streams"]
    assert streams["generative"]["sources"]["tulu"]["split"] == "Qwen3_17B"
    assert run.teacher.config["optim"]["learning_rate"] == 3e-5
    assert run.teacher.parent.config["optim"]["learning_rate"] == 5e-5
    assert run.teacher.parent.config["backbone"]["id"] == "Qwen/Qwen3-1.7B"


@pytest.mark.parametrize("scale", ["mini", "tiny"])
@pytest.mark.parametrize("experiment", ["t1_mntp", "t1_llm2vec", "t1_gem", "t1_hyde", "t1_llm2vec_gen", "t4_jepa"])
def test_a_recipe_leaves_every_other_scale_alone(experiment: str, scale: str) -> None:
    def plain(*more: str) -> dict[str, Any]:
        return compose([f"experiment={experiment}", f"scale={scale}", *more]).resolved

    assert plain() == plain("recipe/paper=none")
    assert compose([f"experiment={experiment}", "scale=paper"]).choices["recipe/paper"] != "none"


def test_a_user_replaces_what_a_recipe_says_or_leaves_it_out() -> None:
    assert at_paper("t1_ulme", "optim.learning_rate=1e-5").config["optim"]["learning_rate"] == 1e-5
    assert at_paper("t1_ulme", "data=echo").config["data"]["streams"].keys() == {"embedding"}
    assert at_paper("t1_ulme", "recipe/paper=none").config["optim"]["learning_rate"] == 5e-5
    assert at_paper("t1_ulme", "recipe/paper=gritlm").config["optim"]["steps"] == 1253


def test_a_user_replaces_what_stands_below_a_recipes_data() -> None:
    source = "data.streams.generative.sources.openthoughts"
    sources = at_paper("t1_ulme", f"{source}.expected_rows=null").config["data"]["streams"]["generative"]["sources"]
    assert sources["openthoughts"]["expected_rows"] is None
