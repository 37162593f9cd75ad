"""Rows of made-up data sets, in the schemas that the readers of training data, mteb and lm-eval expect.

Texts are deterministic words, so that every machine makes the same rows. A table is `(config, split) -> rows`, as
a data set of the hub has it.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rows = list[dict[str, Any]]
Tables = dict[tuple[str, str], Rows]
Pins = Mapping[str, Any]

TOPICS: Mapping[str, str] = {
    "sea": "water wave harbour ship salt tide captain sail anchor storm island net",
    "bread": "flour oven yeast dough baker crust butter knife table salt grain mill",
    "number": "sum prime factor proof digit square root half even odd count series",
    "city": "street market tower bridge square station mayor crowd window noise lamp roof",
}
COMMON = "the a of and to in is that with for on as by from this which"


def text(seed: object, words: int = 12) -> str:
    """A sentence about one topic that holds `words` words; equal seeds give equal sentences."""
    draw = random.Random(f"rehearsal {seed}")
    topic = TOPICS[draw.choice(sorted(TOPICS))].split()
    said = [draw.choice(topic if number % 2 else COMMON.split()) for number in range(words)]
    return " ".join(said).capitalize() + "."


def texts(name: str, count: int, words: int = 12) -> list[str]:
    return [text(f"{name} {number}", words) for number in range(count)]


# mteb: one function a task type. `pins`: what conf/evals pins of the task.


def beir(name: str, pins: Pins, *, extra: Callable[[Sequence[str], Sequence[str]], Tables] | None = None) -> Tables:
    """Corpus, queries and judgements. A task with several splits has a corpus and queries for each."""
    tables: Tables = {}
    for split in pins["splits"]:
        documents, queries = [f"d{i}" for i in range(6)], [f"q_{i}" for i in range(3)]
        where = split if len(pins["splits"]) > 1 else None
        said = [{"_id": d, "title": "", "text": text(f"{name} {split} {d}", 20)} for d in documents]
        asked = [{"_id": q, "text": text(f"{name} {split} {q}", 6)} for q in queries]
        tables[("corpus", where or "corpus")] = said
        tables[("queries", where or "queries")] = asked
        tables[("default", split)] = [
            {"query-id": q, "corpus-id": documents[i], "score": 1} for i, q in enumerate(queries)
        ]
        tables |= extra(queries, documents) if extra else {}
    return tables


def reranking(name: str, pins: Pins) -> Tables:
    def pools(queries: Sequence[str], documents: Sequence[str]) -> Tables:
        rows = [{"query-id": q, "corpus-ids": list(documents)} for q in queries]
        return {("top_ranked", split): rows for split in pins["splits"]}

    return beir(name, pins, extra=pools)


def instruction_reranking(name: str, pins: Pins) -> Tables:
    """FollowIR: each query under its own and under a changed instruction."""
    documents, queries = [f"d{i}" for i in range(6)], [f"q{i}-{form}" for i in range(2) for form in ("og", "changed")]
    (split,) = pins["splits"]
    return {
        ("corpus", "corpus"): [{"_id": d, "title": "", "text": text(f"{name} {d}", 20)} for d in documents],
        ("queries", "queries"): [{"_id": q, "text": text(f"{name} {q[:2]}", 6)} for q in queries],
        ("instruction", "instruction"): [{"query-id": q, "instruction": text(f"{name} {q}", 8)} for q in queries],
        ("default", split): [
            {"query-id": q, "corpus-id": d, "score": 1}
            for q in queries
            for d in (["d0", "d1"] if q.endswith("og") else ["d1"])
        ],
        ("top_ranked", split): [{"query-id": q, "corpus-ids": documents} for q in queries],
        ("qrel_diff", "qrel_diff"): [{"query-id": q, "corpus-ids": ["d0"]} for q in ("q0", "q1")],
    }


def clustering(name: str, pins: Pins) -> Tables:
    """2,500 texts, since mteb draws 2,048 of some data sets and embeds 4 % of most; in rows of many, or one a row."""
    labels = ["cs.AI", "cs.CL", "math.CO"]
    rows = [{"sentences": text(f"{name} {i}", 6), "labels": labels[i % 3]} for i in range(2500)]
    if pins["dataset"] not in ONE_TEXT_A_ROW:
        if name not in CLUSTERED_WHOLE:
            rows = [{key: [row[key] for row in rows] for key in ("sentences", "labels")}]
        else:
            rows = [{key: [row[key] for row in rows[:60]] for key in ("sentences", "labels")}]
    return {("default", split): rows for split in pins["splits"]}


ONE_TEXT_A_ROW = ("mteb/biorxiv-clustering-p2p",)
CLUSTERED_WHOLE = ("StackExchangeClustering.v2", "BiorxivClusteringS2S", "TwentyNewsgroupsClustering")
"""Tasks that embed every text, so that a rehearsal gives them few."""


def of_languages(pins: Pins, tables: Mapping[str, Rows]) -> Tables:
    """Split -> rows as tables of a task's languages: a configuration each, and one of all with a column for it.

    mteb reads some data sets in the one form and some in the other.
    """
    found: Tables = {("default", split): rows for split, rows in tables.items()}
    for language in pins.get("subsets") or ():
        for split, rows in tables.items():
            found[language, split] = rows
            found["default", split] = [row | {"lang": language} for row in rows]
    return found


def classification(name: str, pins: Pins) -> Tables:
    def rows(split: str, count: int) -> Rows:
        return [{"text": text(f"{name} {split} {i}"), "label": i % 2, "label_text": ["no", "yes"][i % 2]}
                for i in range(count)]  # fmt: skip

    return of_languages(
        pins, {split: rows(split, 16 if split == "train" else 6) for split in ("train", *pins["splits"])}
    )


def pair_classification(name: str, pins: Pins) -> Tables:
    rows = [{"sent1": text(f"{name} {i}"), "sent2": text(f"{name} {i + 1 - i % 2}"), "labels": i % 2}
            for i in range(8)]  # fmt: skip
    return of_languages(pins, {split: rows for split in pins["splits"]})


def similarity(name: str, pins: Pins) -> Tables:
    rows = [{"sentence1": text(f"{name} {i}"), "sentence2": text(f"{name} other {i}"), "score": i % 6 / 1.0}
            for i in range(8)]  # fmt: skip
    return of_languages(pins, {split: rows for split in pins["splits"]})


def summarization(name: str, pins: Pins) -> Tables:
    rows = [
        {
            "text": text(f"{name} {i}", 40),
            "human_summaries": texts(f"{name} human {i}", 2),
            "machine_summaries": texts(f"{name} machine {i}", 4),
            "relevance": [1.0, 2.5, 4.0, 5.0][i % 2 :] + [1.5] * (i % 2),
        }
        for i in range(3)
    ]
    return {("default", split): rows for split in pins["splits"]}


def bright(name: str, pins: Pins) -> Tables:
    """One domain, which the name of the task tells; the second query excludes a document."""
    domain = BRIGHT.get(name) or snake(name.removeprefix("Bright").removesuffix("Retrieval"))
    gold = {f"q{i}": f"d{i}" for i in range(3)}
    examples = [
        {"id": q, "query": text(f"{name} {q}", 15), "reasoning": "", "excluded_ids": ["d5"] if q == "q1" else ["N/A"],
         "gold_ids": [d], "gold_ids_long": [d]}
        for q, d in gold.items()
    ]  # fmt: skip
    documents = [{"id": f"d{i}", "content": text(f"{name} d{i}", 25)} for i in range(6)]
    return {("documents", domain): documents, ("examples", domain): examples}


BRIGHT = {
    "BrightTheoremQATheoremsRetrieval": "theoremqa_theorems",
    "BrightTheoremQAQuestionsRetrieval": "theoremqa_questions",
}


def snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).strip("_")


MTEB: Mapping[str, Callable[[str, Pins], Tables]] = {
    "Retrieval": beir,
    "Reranking": reranking,
    "InstructionReranking": instruction_reranking,
    "Clustering": clustering,
    "Classification": classification,
    "PairClassification": pair_classification,
    "STS": similarity,
    "Summarization": summarization,
}

# lm-eval: one function a data set. `tasks`: the names of the suite's tasks.


def mmlu(tasks: Sequence[str]) -> Tables:
    def rows(subject: str, count: int) -> Rows:
        return [{"question": text(f"{subject} {i}"), "subject": subject, "choices": texts(f"{subject} {i}", 4, 3),
                 "answer": i % 4} for i in range(count)]  # fmt: skip

    subjects = [task.removeprefix("mmlu_") for task in tasks]
    return {(s, split): rows(s, count) for s in subjects
            for split, count in (("test", 2), ("validation", 1), ("dev", 5))}  # fmt: skip


def mmlu_pro(tasks: Sequence[str]) -> Tables:
    said = "A: Let's think step by step. The answer is ({})."
    rows = [
        {"question_id": i, "question": text(f"{task} {i}"), "options": texts(f"{task} {i}", 4, 3),
         "answer": "ABCD"[i % 4], "answer_index": i % 4, "cot_content": said.format("ABCD"[i % 4]), "src": "rehearsal",
         "category": task.removeprefix("mmlu_pro_").replace("_", " ")}
        for task in tasks for i in range(7)
    ]  # fmt: skip
    return {
        ("default", "test"): [row for row in rows if row["question_id"] < 2],
        ("default", "validation"): [row for row in rows if row["question_id"] >= 2],
    }


def gsm8k(tasks: Sequence[str]) -> Tables:
    rows = [{"question": f"What is {i} plus {i}?", "answer": f"Twice {i}.\n#### {2 * i}"} for i in range(10)]
    return {("main", "train"): rows[:7], ("main", "test"): rows[7:]}


def humaneval(tasks: Sequence[str]) -> Tables:
    rows = [
        {"task_id": f"Rehearsal/{i}", "prompt": f"def add{i}(number):\n",
         "canonical_solution": f"    return number + {i}\n",
         "test": f"def check(candidate):\n    assert candidate(1) == {1 + i}\n", "entry_point": f"add{i}"}
        for i in range(2)
    ]  # fmt: skip
    return {("default", "test"): rows}


def winogrande(tasks: Sequence[str]) -> Tables:
    rows = [{"sentence": f"The {i} cups did not fit, for the _ was small.", "option1": "cup", "option2": "box",
             "answer": "12"[i % 2]} for i in range(6)]  # fmt: skip
    return {("winogrande_xl", split): rows for split in ("train", "validation")}


def truthfulqa(tasks: Sequence[str]) -> Tables:
    truth = {"choices": ["It is wet.", "It is dry."], "labels": [1, 0]}
    rows = [{"question": text(f"truth {i}", 5), "mc1_targets": truth, "mc2_targets": truth} for i in range(2)]
    return {("multiple_choice", "validation"): rows}


LM_EVAL: Mapping[str, Callable[[Sequence[str]], Tables]] = {
    "cais/mmlu": mmlu,
    "TIGER-Lab/MMLU-Pro": mmlu_pro,
    "openai/gsm8k": gsm8k,
    "openai/openai_humaneval": humaneval,
    "evalplus/humanevalplus": humaneval,
    "allenai/winogrande": winogrande,
    "truthfulqa/truthful_qa": truthfulqa,
}

ADVBENCH: Mapping[str, Tables] = {
    "McGill-NLP/AdvBench-IR": {
        ("default", "train"): [
            {"ID": i, "title": f"t{i}", "query": text(f"request {i}"), "document": text(f"harmful {i}", 230)}
            for i in range(4)
        ]
    },
    "McGill-NLP/AdvBench-IR-Small-Wiki-100": {
        ("default", "train"): [{"title": f"Article {i}", "passage": text(f"wiki {i}", 100)} for i in range(8)]
    },
}

# Training data: one function a shape of rows (unified_lm.data.record_formats).


def pair(name: str, i: int) -> dict[str, Any]:
    return {
        "query": text(f"{name} q{i}", 6),
        "positive": text(f"{name} p{i}", 25),
        "negative": text(f"{name} n{i}", 25),
    }


def instructed_pair(name: str, i: int) -> dict[str, Any]:
    asked, found, other = pair(name, i).values()
    return {"query": [f"Find {name}", asked], "pos": [["", found]], "neg": [["", other]]}


def alternating(name: str, i: int) -> dict[str, Any]:
    return {"text": texts(f"{name} {i}", 4, 14)}


def question_answer(name: str, i: int) -> dict[str, Any]:
    asked, answered, other, its = texts(f"{name} {i}", 4, 14)
    return {"question": asked, "answer": answered, "negative_question": other, "negative_answer": its}


def open_thoughts(name: str, i: int) -> dict[str, Any]:
    """Every fourth answer is longer than the 2,048 tokens at which recipes cut."""
    thought, solution = text(f"{name} thought {i}", 40 if i % 4 else 3000), text(f"{name} solution {i}")
    whole = (
        f"<|begin_of_thought|>\n\n{thought}\n\n<|end_of_thought|>\n\n"
        f"<|begin_of_solution|>\n\n{solution}\n\n<|end_of_solution|>"
    )
    asked = {"from": "user", "value": text(f"{name} question {i}")}
    return {
        "system": "Think between tags, then give your solution.",
        "conversations": [asked, {"from": "assistant", "value": whole}],
    }


def line(name: str, i: int) -> dict[str, Any]:
    return {"text": text(f"{name} {i}", 20)}


SHAPES: Mapping[str, Callable[[str, int], dict[str, Any]]] = {
    "positive_negative": pair,
    "pos_neg": instructed_pair,
    "alternating": alternating,
    "question_answer": question_answer,
    "open_thoughts": open_thoughts,
    "text": line,
}
