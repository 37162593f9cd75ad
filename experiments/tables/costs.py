"""What a run costs, told before it starts: memory by part, GPU hours from FLOPs, disk. Assumptions stand below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from experiments.config.build import build_dataclass, instantiate_node
from unified_lm.backbones.shapes import decoder_config
from unified_lm.backbones.tiny import train_tiny_tokenizer
from unified_lm.flops import PEAKS
from unified_lm.memory import LayerCost, Memory, TrainingPlan, measure_layer, training_memory
from unified_lm.training.fsdp import Launch
from unified_lm.training.loop import Runtime

GIB = 2**30
CONTEXT_GIB = 1.0  # CUDA context, cuBLAS workspaces, NCCL buffers: assumed
CHARACTERS_PER_TOKEN = 4.3  # of English text in byte-level BPE: assumed
DECODE_MS_PER_LAYER = (
    0.75  # a decoding step is bound by kernel launches, whatever its rows: assumed, as measured by others
)


@dataclass(frozen=True, kw_only=True)
class RowTokens:
    """Mean tokens of a row of a data set. `documents`: how many a row has, of `document` tokens each."""

    query: int
    document: int = 0
    documents: int = 0
    answer: int = 0


# Assumed, from the lengths that the data sets' pages and papers state; a text counts up to its limit in `lengths`.
ROW_TOKENS = {
    "echo": RowTokens(query=45, document=160, documents=2),
    "medi2": RowTokens(query=60, document=160, documents=2),
    "openthoughts": RowTokens(query=330, answer=6000),
    "openthoughts_filtered": RowTokens(query=330, answer=6000),
    "tulu2": RowTokens(query=250, answer=350),
    "llm2vec_gen_tulu": RowTokens(query=100, answer=250),
    "llm2vec_gen_negatives": RowTokens(query=100, answer=250),
    "wiki1m": RowTokens(query=35),
    "wikitext": RowTokens(query=512),
}
UNKNOWN_ROW = RowTokens(query=64, document=128, documents=2, answer=64)

# Questions (lm-eval's), mean tokens of a prompt and of an answer (assumed; 0: likelihoods alone).
GENERATION = {
    "lm_gsm8k": (1319, 950, 300),
    "lm_gsm8k_rows": (1319, 950, 300),
    "lm_mmlu": (14042, 700, 0),
    "lm_mmlu_pro": (12032, 1700, 400),
    "lm_humaneval": (164, 180, 300),
    "lm_humaneval_plus": (164, 180, 300),
    "lm_winogrande": (1267, 150, 0),
    "lm_truthfulqa": (817, 150, 0),
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """GPUs of one kind: how many, GiB of each, bfloat16 FLOP/s of each, and the share of these that a run reaches."""

    gpus: int
    memory_gib: float
    flops: float
    utilisation: float


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """An estimate of one run. `fits`: within the machine's memory; `ways`: settings with which it would."""

    parameters: int
    learning: int
    memory: Memory
    fits: bool
    ways: tuple[str, ...]
    training_hours: float
    scoring_hours: float
    disk_gib: float


def estimate(config: Mapping[str, Any], machine: Machine) -> RunCost:
    """The cost of the run of a resolved configuration.

    Raises `ValueError` where the backbone is no decoder of ours.
    """
    parts = Parts.of(config)
    memory = parts.memory()
    room = (machine.memory_gib - CONTEXT_GIB) * GIB
    fits = not parts.trains or memory.total <= room
    ways = () if fits else tuple(way for way, changed in parts.alternatives(machine) if changed.memory().total <= room)
    rate = machine.flops * machine.utilisation * 3600
    return RunCost(
        parameters=parts.cost.parameters,
        learning=parts.cost.learning if parts.trains else 0,
        memory=memory,
        fits=fits,
        ways=ways,
        training_hours=parts.training_flops() / rate if parts.trains else 0.0,
        scoring_hours=parts.encoding_tokens() * 2 * parts.linear_parameters() / rate + parts.decoding_hours(),
        disk_gib=(3 * parts.cost.learning_bytes + parts.cost.learning_bytes * parts.runtime.keep_last) / GIB,
    )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a configuration that decide a run's cost."""

    config: Mapping[str, Any]
    cost: LayerCost
    shape: Any
    launch: Launch
    runtime: Runtime
    states: str
    trains: bool

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Parts:
        runtime = {name: value for name, value in config["runtime"].items() if name != "device"}
        launch = build_dataclass(Launch, config["launch"], "launch")
        method = instantiate_node(config["method"], "method")
        backbone = instantiate_node(config["backbone"], "backbone")
        shape = decoder_config(backbone)
        return cls(
            config=config,
            cost=layer_cost(config, shape, backbone.dtype, launch.checkpointing, method.slots),
            shape=shape,
            launch=launch,
            runtime=build_dataclass(Runtime, runtime, "runtime"),
            states=config["optim"].get("states", "float32"),
            trains=method.trains,
        )

    def memory(self) -> Memory:
        plan = TrainingPlan(
            chunk_tokens=self.runtime.chunk_tokens,
            keep_tokens=self.runtime.keep_tokens or 0,
            processes=self.launch.processes,
            sharded=self.launch.sharded,
            optimizer_states=self.states,
            next_token=any(answer for _, _, answer in self.rows()),
        )
        return training_memory(self.cost, self.shape, plan)

    def alternatives(self, machine: Machine) -> Iterator[tuple[str, Parts]]:
        """Settings that leave the objective as it is and need less memory, the cheapest in time first."""
        smaller = [tokens for tokens in (4096, 2048, 1024) if tokens < self.runtime.chunk_tokens]
        for tokens in smaller:
            yield f"runtime.chunk_tokens={tokens}", self.changed(chunk_tokens=tokens)
        yield "launch.checkpointing=true", self.changed(checkpointing=True)
        yield (
            "launch.checkpointing=true runtime.chunk_tokens=2048",
            self.changed(checkpointing=True, chunk_tokens=2048),
        )
        if machine.gpus > 1 and not self.launch.sharded:
            name = f"launch=fsdp_{machine.gpus} launch.checkpointing=true"
            yield name, self.changed(checkpointing=True, processes=machine.gpus, sharding="fsdp")
        if self.states != "8bit":
            yield (
                "launch.checkpointing=true optim.states=8bit",
                replace(self.changed(checkpointing=True), states="8bit"),
            )

    def changed(self, *, chunk_tokens: int | None = None, **launch: Any) -> Parts:
        config = {**self.config, "launch": {**self.config["launch"], **launch}}
        config["runtime"] = {**self.config["runtime"]}
        config["runtime"]["chunk_tokens"] = chunk_tokens or self.config["runtime"]["chunk_tokens"]
        return replace(Parts.of(config), states=self.states)

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Of each stream: rows a step, tokens of a row, and how many of these are an answer."""
        lengths = self.config["lengths"]
        for stream in self.config["data"].get("streams", {}).values():
            known = [ROW_TOKENS.get(name, UNKNOWN_ROW) for name in stream["sources"]]
            for row in known[:1]:
                answer = min(row.answer, lengths["answer"])
                documents = row.documents * min(row.document, lengths["document"])
                yield stream["rows_per_step"], min(row.query, lengths["query"]) + documents + answer, answer

    def linear_parameters(self) -> int:
        """Weights that every token passes: all but embeddings and head."""
        tied = bool(self.shape.tie_word_embeddings)
        return self.cost.parameters - self.shape.vocab_size * self.shape.hidden_size * (1 if tied else 2)

    def training_flops(self) -> float:
        """FLOPs of the whole run: two forwards (the first without a graph) and a backward a token, the head a label."""
        optim = self.config["optim"]
        share = self.cost.learning / self.cost.parameters
        body = 2 * self.linear_parameters() * (2 + 1 + share)
        head = 6 * self.shape.vocab_size * self.shape.hidden_size
        step = sum(rows * (tokens * body + labels * head) for rows, tokens, labels in self.rows())
        return step * (optim.get("stop_after") or optim["steps"])

    def encoding_tokens(self) -> float:
        """Tokens of all texts that the embedding suites encode, from mteb's published statistics."""
        longest = max(self.config["lengths"]["query"], self.config["lengths"]["document"])
        suites = [suite for suite in self.config["evals"].values() if "mteb" in suite["_target_"]]
        tasks = {task for suite in suites for task in suite.get("tasks") or ()}
        return sum(task_tokens(task, longest) for task in tasks)

    def decoding_hours(self) -> float:
        """Hours of lm-eval's suites: prompts by FLOPs are small beside steps that wait for launches."""
        seconds = 0.0
        for name in self.config["evals"]:
            questions, prompt, answer = GENERATION.get(name, (0, 0, 0))
            rows = max(1, 8192 // max(1, prompt + answer))
            steps = questions / rows * max(answer, 1)
            seconds += steps * self.shape.num_hidden_layers * DECODE_MS_PER_LAYER / 1000
        return seconds / 3600


def layer_cost(config: Mapping[str, Any], shape: Any, dtype: str, checkpointing: bool, slots: int) -> LayerCost:
    """Costs of a decoder under what the configuration trains of it."""
    trainable = instantiate_node(config["trainable"], "trainable")
    if getattr(trainable, "parts", None) == ["slots"]:
        trainable = None
    return measure_layer(
        shape,
        train_tiny_tokenizer(512),
        apply=freeze if trainable is None else trainable.apply,
        dtype=getattr(torch, dtype),
        autocast=None if config["autocast"] is None else getattr(torch, config["autocast"]),
        checkpointing=checkpointing,
        slots=slots,
    )


def freeze(model: torch.nn.Module) -> None:
    """Let no parameter learn."""
    model.requires_grad_(False)


@cache
def task_tokens(name: str, longest: int) -> float:
    """Tokens of a task's distinct texts, by mteb's descriptive statistics; 0 where mteb publishes none."""
    import mteb

    try:
        metadata = mteb.get_task(name).metadata
    except KeyError:
        return 0.0
    splits = metadata.descriptive_stats or {}
    fields = [
        field
        for split in metadata.eval_splits
        for field in splits.get(split, {}).values()
        if isinstance(field, dict) and "average_text_length" in field
    ]
    return sum(f["unique_texts"] * min(longest, f["average_text_length"] / CHARACTERS_PER_TOKEN) for f in fields)


def peak_flops(gpu: str) -> float:
    """bfloat16 FLOP/s of a GPU by its name.

    Raises `ValueError` for one that is not in the list.
    """
    if gpu not in PEAKS:
        raise ValueError(f"gpu={gpu} is not known; use one of {', '.join(PEAKS)}, or give flops=989e12")
    return PEAKS[gpu]
