"""A folder with every data set that conf/data and conf/evals name, a few made-up rows each, in the hub's layout."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from experiments.config.paths import CONF
from experiments.rehearsal import rows
from experiments.rehearsal.rows import Tables
from unified_lm.data.hub import generator_split
from unified_lm.files import cache_dir, create_folder_once, strings_digest

ROWS = 64
"""Rows of a training data set; a rehearsal reads two batches of at most eight."""

MANY = {"princeton-nlp/datasets-for-simcse": 2000, "Salesforce/wikitext": 800}
"""Data sets of single lines, of which a recipe takes every 31st, or joins many to a text."""

Files = dict[str, str]
"""Path below the mirror -> what stands in the file."""


def make_mirror() -> Path:
    """The folder of the mirror, written once and named by its content."""
    files = mirror_files()
    name = strings_digest(*(part for path in sorted(files) for part in (path, files[path])))

    def write(folder: Path) -> None:
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")

    return create_folder_once(cache_dir() / "rehearsal" / f"mirror-{name}", write)


@cache
def mirror_files() -> Files:
    """All of its files."""
    files: Files = {}
    for id, tables in evaluation_tables().items():
        files |= publish(id, tables)
    files |= long_embed_files()
    for node in hub_data_sets():
        files |= training_files(node)
    return files


def publish(id: str, tables: Tables) -> Files:
    """jsonl files and the card that names them, as `hf download` would leave a data set."""
    files: Files = {}
    listed: dict[str, str] = {}
    for (config, split), content in tables.items():
        file = f"data/{config}-{split}.jsonl"
        files[f"{id}/{file}"] = jsonl(content)
        listed[config] = listed.get(config, "") + f"  - split: {split}\n    path: {file}\n"
    card = "".join(f"- config_name: {config}\n  data_files:\n{paths}" for config, paths in listed.items())
    return files | {f"{id}/README.md": f"---\nconfigs:\n{card}---\n"}


def jsonl(content: rows.Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in content)


def suites() -> Iterator[Mapping[str, Any]]:
    """Every suite of conf/evals that reads data sets of the hub."""
    for path in sorted((CONF / "evals").glob("*.yaml")):
        for suite in (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).values():
            if "mirror" in suite and "committed" in suite:
                yield suite


def evaluation_tables() -> dict[str, Tables]:
    """Data set -> its tables; tasks that share a data set add theirs to it."""
    found: dict[str, Tables] = {id: dict(tables) for id, tables in rows.ADVBENCH.items()}
    for suite in suites():
        if "dataset" in suite:
            found.setdefault(suite["dataset"], {}).update(rows.LM_EVAL[suite["dataset"]](list(suite["tasks"])))
            continue
        for name, pins in suite.get("tasks", {}).items():
            if pins.get("by_files"):
                continue
            make = rows.bright if pins["dataset"] == "mteb/BRIGHT" else rows.MTEB[pins["category"]]
            tables = found.setdefault(pins["dataset"], {})
            tables.update({place: made for place, made in make(name, pins).items() if place not in tables})
    return found


def long_embed_files() -> Files:
    """LongEmbed's own layout: three files with different columns a configuration, and no card."""
    files: Files = {}
    for suite in suites():
        for name, pins in suite.get("tasks", {}).items():
            if pins.get("by_files"):
                config = LONG_EMBED[name]
                lengths = [int(split.removeprefix("test_")) for split in pins["splits"] if split[-1].isdigit()]
                for file, made in long_embed_tables(name, lengths or [0]).items():
                    files[f"{pins['dataset']}/{config}/{file}.jsonl"] = jsonl(made)
    return files


LONG_EMBED = {
    "LEMBNeedleRetrieval": "needle",
    "LEMBNarrativeQARetrieval": "narrativeqa",
    "LEMBQMSumRetrieval": "qmsum",
    "LEMBSummScreenFDRetrieval": "summ_screen_fd",
    "LEMBWikimQARetrieval": "2wikimqa",
}


def long_embed_tables(name: str, lengths: list[int]) -> dict[str, rows.Rows]:
    tables: dict[str, rows.Rows] = {"corpus": [], "queries": [], "qrels": []}
    for length in lengths:
        about = {"context_length": length} if length else {}
        for i in range(3):
            q, d = f"q{length}_{i}", f"d{length}_{i}"
            tables["corpus"].append({"doc_id": d, "text": rows.text(f"{name} {d}", 30)} | about)
            tables["queries"].append({"qid": q, "text": rows.text(f"{name} {q}", 6)} | about)
            tables["qrels"].append({"qid": q, "doc_id": d} | about)
    return tables


def hub_data_sets() -> Iterator[dict[str, Any]]:
    """Every data set of the hub in conf/data, as it is written there."""
    for path in sorted((CONF / "data").glob("*.yaml")):
        whole = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        for stream in whole.get("streams", {}).values():
            yield from (node for node in stream.get("sources", {}).values() if node["_target_"].endswith("HubDataset"))


def training_files(node: Mapping[str, Any]) -> Files:
    """The files of a training data set: those that it names, else a table for its configuration and split."""
    id, make = node["id"], rows.SHAPES[node["shape"]]
    made = [make(id, i) for i in range(MANY.get(id, ROWS))]
    if not node.get("files"):
        splits = [node.get("split", "train")]
        if "generator_split" in splits[0]:
            splits = ["original", *generators()]
        return publish(id, {(node.get("config") or "default", split): made for split in splits})
    files: Files = {}
    for file in node["files"]:
        name = file.replace("*", "rehearsal")
        own = [make(f"{id} {name}", i) for i in range(MANY.get(id, ROWS))]
        plain = name.endswith(".txt")
        files[f"{id}/{name}"] = "".join(row["text"] + "\n" for row in own) if plain else jsonl(own)
    return files


def generators() -> list[str]:
    """The splits of data whose answers a run's own backbone wrote, one a decoder of conf/backbone."""
    backbones = [yaml.safe_load(path.read_text()) for path in sorted((CONF / "backbone").glob("*.yaml"))]
    ids = {node["id"] for node in backbones if node and "/" in str(node.get("id", ""))}
    return sorted(map(generator_split, ids))
