"""The hub data sets of conf/data, each read from a local mirror that is written in its schema."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments import check_data
from experiments.config.build import instantiate_node
from experiments.config.compose import compose
from experiments.config.errors import UsageError
from experiments.config.identity import identify
from unified_lm.data.rows import TrainingRow
from unified_lm.data.streams import Streams

HUB = (
    "echo",
    "medi2",
    "tulu2",
    "openthoughts",
    "openthoughts_filtered",
    "wikitext",
    "wiki1m",
    "llm2vec_gen_tulu",
    "llm2vec_gen_negatives",
    "echo+openthoughts",
    "echo+tulu2",
    "medi2+tulu2",
)
UNKNOWN = ("openthoughts_filtered", "llm2vec_gen_tulu", "llm2vec_gen_negatives")  # commits that a user gives
SYSTEM = "Think first, then answer."


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "mirror"


def lines(path: Path, *records: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def card(folder: Path, configs: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")


def streams(data: str, mirror: Path, *overrides: str) -> Streams:
    job = compose([f"data={data}", "scale=none", f"data_mirror={mirror}", *overrides])
    return instantiate_node(job.resolved["data"], "data")


def rows(data: str, mirror: Path, *overrides: str) -> list[TrainingRow]:
    (stream,) = streams(data, mirror, *overrides).streams.values()
    (source,) = stream.sources.values()
    return list(source.rows())


ECHO = ("allnli", "dureader", "eli5_question_answer", "fever", "hotpot_qa", "miracl", "mrtydi", "msmarco_passage",
        "msmarco_document", "nq", "quora_duplicates", "squad", "t2ranking", "trivia_qa")  # fmt: skip


def echo(mirror: Path, change: Callable[[str, int, dict], dict] = lambda name, number, record: record) -> Path:
    folder = mirror / "liuqi6777" / "echo-data"
    for name in (*ECHO, "allnli_split1"):
        records = [{"query": f"{name} {i}", "positive": f"p {name} {i}", "negative": f"n {name} {i}"} for i in range(5)]
        lines(folder / f"{name}.jsonl", *(change(name, i, record) for i, record in enumerate(records)))
    return folder


def test_echo_has_an_instruction_a_data_set_two_by_turns_where_llm2vec_has_two_and_one_negative_a_row(
    mirror: Path,
) -> None:
    echo(mirror)
    found = rows("echo", mirror)
    assert len(found) == 5 * len(ECHO) and {row.source for row in found} == set(ECHO)
    assert all(len(row.negatives) == 1 and row.positive and row.answer is None for row in found)
    by_set = {name: [row.instruction for row in found if row.source == name] for name in ECHO}
    assert by_set["allnli"][:3] == [
        "Given a premise, retrieve a hypothesis that is entailed by the premise",
        "Retrieve semantically similar text",
        "Given a premise, retrieve a hypothesis that is entailed by the premise",
    ]
    assert by_set["quora_duplicates"][1] == "Find questions that have the same meaning as the input question"
    twice = {name for name, instructions in by_set.items() if len(set(instructions)) > 1}
    assert twice == {"allnli", "quora_duplicates"} and all(all(instructions) for instructions in by_set.values())


def test_batches_of_echo_are_of_one_data_set_and_those_that_are_not_full_are_dropped(mirror: Path) -> None:
    echo(mirror)
    batches = streams("echo", mirror, "data.streams.embedding.rows_per_step=2").load()
    stream = batches.streams["embedding"]
    assert stream.batches_per_epoch == 2 * len(ECHO)
    for step in range(stream.batches_per_epoch):
        assert len({row.source for row in batches.batch(step)}) == 1
    assert batches.counters(1)["embedding"]["dropped_an_epoch"] == len(ECHO)


def test_echo_with_a_file_a_column_or_a_negative_missing_is_refused_by_name(mirror: Path) -> None:
    folder = echo(mirror, lambda name, i, r: r | ({"negative": None} if (name, i) == ("fever", 3) else {}))
    with pytest.raises(ValueError, match=r"fever, split train, row 3: .*'negatives' number 0, not the 1"):
        rows("echo", mirror)
    echo(mirror, lambda name, i, r: {k: v for k, v in r.items() if (name, k) != ("nq", "positive")})
    with pytest.raises(ValueError, match=r"nq: no column 'positive'; expected query, .*found query, negative"):
        rows("echo", mirror)
    echo(mirror)
    (folder / "squad.jsonl").unlink()
    with pytest.raises(ValueError, match=r"has no file squad\.jsonl; it holds allnli\.jsonl"):
        rows("echo", mirror)


def thoughts(mirror: Path, *answers: str, name: str = "open-thoughts/OpenThoughts-114k") -> None:
    asked = [{"from": "user", "value": f"question {i}"} for i in range(len(answers))]
    replies = [{"from": "assistant", "value": answer} for answer in answers]
    folder = mirror / name / "data"
    folder.mkdir(parents=True, exist_ok=True)
    records = [{"system": SYSTEM, "conversations": [q, a]} for q, a in zip(asked, replies, strict=True)]
    pq.write_table(pa.Table.from_pylist(records), folder / "train-00000-of-00001.parquet")
    card(folder.parent, "- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n")


def trace(thought: str, solution: str) -> str:
    return (
        f"<|begin_of_thought|>\n\n{thought}\n\n<|end_of_thought|>\n\n"
        f"<|begin_of_solution|>\n\n{solution}\n\n<|end_of_solution|>"
    )


SOURCE = "data.streams.generative.sources.openthoughts"


@pytest.mark.parametrize("data", ["openthoughts", "openthoughts_filtered"])
def test_openthoughts_gives_whole_traces_or_solutions_alone(data: str, mirror: Path) -> None:
    name = {"openthoughts_filtered": "mlabonne/OpenThoughts-79k-filtered"}.get(data, "open-thoughts/OpenThoughts-114k")
    thoughts(mirror, trace("hm " * 9, "42"), trace("so", "43"), name=name)
    whole = rows(data, mirror, f"{SOURCE}.expected_rows=2")
    assert [(row.query, row.history) for row in whole] == [(f"question {i}", (("system", SYSTEM),)) for i in range(2)]
    assert whole[0].answer == trace("hm " * 9, "42")
    bare = rows(data, mirror, f"{SOURCE}.expected_rows=2", f"{SOURCE}.shape=open_thoughts_solution")
    assert [(row.answer, row.history) for row in bare] == [("42", ()), ("43", ())]


def test_openthoughts_of_another_size_is_refused_with_both_numbers_and_a_trace_without_tags_by_its_row(
    mirror: Path,
) -> None:
    thoughts(mirror, trace("a", "1"), "just one")
    with pytest.raises(ValueError, match="expected 113957 rows, found 2"):
        rows("openthoughts", mirror)
    solutions = [f"{SOURCE}.expected_rows=2", f"{SOURCE}.shape=open_thoughts_solution"]
    with pytest.raises(ValueError, match=r"row 1: field 'conversations\[1\]' lacks <\|begin_of_thought\|>"):
        rows("openthoughts", mirror, *solutions)
    assert [row.answer for row in rows("openthoughts", mirror, *solutions, f"+{SOURCE}.on_bad=skip")] == ["1"]


def test_answers_that_are_too_long_are_left_out_and_counted_or_cut_later(mirror: Path) -> None:
    thoughts(mirror, trace("x" * 500, "1"), trace("y", "2"))
    more = [f"{SOURCE}.expected_rows=2", f"{SOURCE}.longest_answer=200", "data.streams.generative.rows_per_step=1"]
    layout = streams("openthoughts", mirror, *more).load()
    assert [layout.batch(0)[0].query] == ["question 1"]
    assert layout.counters(1)["generative"]["longer answers"] == 1


def test_wikitext_is_pinned_and_its_lines_are_joined_to_texts_without_blank_ones(mirror: Path) -> None:
    folder = mirror / "Salesforce" / "wikitext" / "wikitext-103-raw-v1"
    folder.mkdir(parents=True)
    texts = ["", " = Title = \n", "", "one " * 300, "two " * 300, " ", "end"]
    pq.write_table(pa.table({"text": texts}), folder / "train-00000-of-00001.parquet")
    card(
        folder.parent,
        "- config_name: wikitext-103-raw-v1\n  data_files:\n  - split: train\n    path: wikitext-103-raw-v1/train-*\n",
    )
    source = "data.streams.text.sources.wikitext"
    with pytest.raises(ValueError, match="expected 1801350 rows, found 7"):
        rows("wikitext", mirror)
    found = rows("wikitext", mirror, f"{source}.expected_rows=7")
    assert [row.text.split()[0] for row in found] == ["=", "end"]
    assert len(found[0].text) >= 2300 and "two" in found[0].text and not found[0].text.count("\n\n\n")


def test_wiki1m_is_a_sentence_a_row(mirror: Path) -> None:
    folder = mirror / "princeton-nlp" / "datasets-for-simcse"
    folder.mkdir(parents=True)
    (folder / "wiki1m_for_simcse.txt").write_text("One sentence.\n\nAnother one.\n")
    (folder / "nli_for_simcse.csv").write_text("sent0,sent1,hard_neg\na,b,c\n")
    assert [row.text for row in rows("wiki1m", mirror)] == ["One sentence.", "Another one."]


def test_llm2vec_gens_questions_come_with_the_answers_of_the_backbone_that_learns(mirror: Path) -> None:
    folder = mirror / "McGill-NLP" / "llm2vec-gen-tulu"
    splits = ("original", "Qwen3_17B", "Qwen25_7B_Instruct")
    for split in splits:
        lines(folder / "data" / f"{split}.jsonl", {"id": "1", "question": "what", "answer": f"by {split}"})
    card(
        folder,
        "- config_name: default\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: data/{split}.jsonl\n" for split in splits),
    )
    by = {"qwen3_1_7b": "Qwen3_17B", "qwen2_5_7b": "Qwen25_7B_Instruct", "tiny": "original"}
    for backbone, split in by.items():
        (row,) = rows("llm2vec_gen_tulu", mirror, f"backbone={backbone}")
        assert (row.query, row.answer) == ("what", f"by {split}")
    with pytest.raises(ValueError, match="Qwen3_8B"):
        rows("llm2vec_gen_tulu", mirror, "backbone=qwen3_8b")


def test_llm2vec_gens_hard_negatives_are_other_questions_with_their_answers(mirror: Path) -> None:
    folder = mirror / "McGill-NLP" / "llm2vec-gen-tulu-w-hard-negative"
    record = {"question": "q", "answer": "a", "negative_question": "other q", "negative_answer": "other a"}
    lines(folder / "original.jsonl", record)
    card(folder, "- config_name: default\n  data_files:\n  - split: original\n    path: original.jsonl\n")
    (row,) = rows("llm2vec_gen_negatives", mirror, "backbone=tiny")
    assert (row.query, row.answer, row.negative_dialogues) == ("q", "a", (("other q", "other a"),))
    lines(folder / "original.jsonl", {key: value for key, value in record.items() if key != "negative_answer"})
    with pytest.raises(ValueError, match="no column 'negative_answer'"):
        rows("llm2vec_gen_negatives", mirror, "backbone=tiny")


def test_medi2_is_a_data_set_a_file_and_tulu2_a_row_an_answer(mirror: Path) -> None:
    for name in ("altlex", "agnews"):
        pair = {"query": ["Represent this:", "q"], "pos": [["Represent that:", "p"]], "neg": [["", "n"], ["", "m"]]}
        lines(mirror / "GritLM" / "MEDI2" / f"{name}.jsonl", pair)
    found = rows("medi2", mirror)
    assert {row.source for row in found} == {"altlex", "agnews"}
    assert {(r.instruction, r.query, r.positive, r.negatives) for r in found} == {("Represent this", "q", "p", ("n",))}
    lines(mirror / "GritLM" / "tulu2" / "tulu2.jsonl", {"text": ["u1", "a1", "u2", "a2"]})
    assert [(row.query, row.answer, len(row.history)) for row in rows("tulu2", mirror)] == [
        ("u1", "a1", 0),
        ("u2", "a2", 2),
    ]
    both = streams("medi2+tulu2", mirror, "data.streams.embedding.rows_per_step=2")
    assert set(both.streams) == {"embedding", "generative"}


@pytest.mark.parametrize("data", HUB)
def test_a_data_set_whose_commit_is_not_known_asks_for_it_and_is_named_by_it(data: str) -> None:
    asked = [f"data={data}", "scale=none", "backbone=tiny"]
    if data in UNKNOWN:
        with pytest.raises(UsageError, match=r"the commit of .* is not known to us: give the one that you read"):
            identify(compose(asked))
    else:
        assert identify(compose(asked)).identity
    if data == "wikitext":
        return
    names = compose([]).config.revisions
    given, other = ([f"revisions.{name}={digit * 40}" for name in names] for digit in "ab")
    assert identify(compose([*asked, *given])).identity != identify(compose([*asked, *other])).identity


def test_commits_and_mirror_are_handed_to_the_parents_of_a_run() -> None:
    given = [f"revisions.wiki1m={'a' * 40}", "data_mirror=/somewhere"]
    run = identify(compose(["experiment=t1_llm2vec_unsup", "scale=mini", *given]))
    assert run.parent.config["revisions"]["wiki1m"] == "a" * 40
    assert run.parent.config["data_mirror"] == "/somewhere"
    assert run.identity == identify(compose(["experiment=t1_llm2vec_unsup", "scale=mini"])).identity


def test_training_data_is_checked_with_all_failures_at_once(mirror: Path, capsys: pytest.CaptureFixture) -> None:
    thoughts(mirror, trace("a", "1"))
    folder = mirror / "princeton-nlp" / "datasets-for-simcse"
    folder.mkdir(parents=True)
    (folder / "wiki1m_for_simcse.txt").write_text("One sentence.\n")
    echo(mirror, lambda name, number, record: {k: v for k, v in record.items() if k != "negative"})
    code = check_data.main(["data=echo+openthoughts,echo,wiki1m,wikitext,packaged", f"data_mirror={mirror}"])
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out.splitlines()[2] == "ok   wiki1m/text/wiki1m" and len(captured.out.splitlines()) == 4
    assert "echo+openthoughts/embedding/echo: liuqi6777/echo-data, allnli: no column 'negative'" in captured.err
    assert "generative/openthoughts: open-thoughts/OpenThoughts-114k, split train: expected 113957" in captured.err
    assert "wikitext/text/wikitext: data_mirror=" in captured.err
    assert "error: 3 of the data sets cannot be used" in captured.err
    assert check_data.main(["data=wiki1m", f"data_mirror={mirror}"]) == 0


def test_without_commits_the_check_names_every_one_that_is_not_known(capsys: pytest.CaptureFixture) -> None:
    assert check_data.main([f"data={','.join(UNKNOWN)}"]) == 1
    assert capsys.readouterr().err.count("is not known to us") == len(UNKNOWN)


def test_all_data_is_checked_where_none_is_named() -> None:
    places = {place.partition("/")[0] for place, _ in check_data.check_training_data({}, [], [])}
    assert places >= {"echo", "medi2", "openthoughts_filtered", "wiki1m", "wikitext"}


def test_the_data_of_a_table_is_that_of_its_rows_their_parents_and_their_teachers() -> None:
    own = {"tables": "3", "scale": "paper"}
    jobs = check_data.compose_table_rows(own, [])
    assert {job.choices["data"] for job in jobs} >= {"openthoughts", "echo+openthoughts"}
    jobs = [compose(["experiment=t1_llm2vec_gen", "scale=paper"])]
    places = {place: problem for place, problem in check_data.check_training_data(own, jobs, [])}
    assert set(places) == {"llm2vec_gen_tulu/generative/tulu", "wiki1m/text/wiki1m", "wikitext/text/wikitext"}
    assert "is not known to us" in places["llm2vec_gen_tulu/generative/tulu"]
