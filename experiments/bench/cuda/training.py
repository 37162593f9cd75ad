"""Training steps on a GPU, texts in: contrastive and unified ones beside their peers', full fine-tuning, adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from experiments.bench.cuda.shapes import Measured, Shape, peer, seconds, shares, texts
from experiments.bench.material import CAUSAL, PLAIN
from experiments.bench.training import (
    SLOTS,
    TEMPERATURE,
    compute_gradient,
    compute_peer_gradient,
    flatten_gradient,
    relative_distance,
    run_three_forwards,
)
from unified_lm.data.rows import TrainingRow
from unified_lm.flops import training_flops
from unified_lm.methods.contrastive import Contrastive
from unified_lm.methods.ulme import Ulme
from unified_lm.model import UnifiedLM
from unified_lm.packing import PackedBatch, collate, pack
from unified_lm.prompts.format import Format
from unified_lm.trainable import Lora
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients
from unified_lm.training.optimizer import Optim

CONTRASTIVE = Contrastive(temperature=TEMPERATURE, symmetric=False, readout="mean")
ULME = Ulme(
    slots=SLOTS, temperature=TEMPERATURE, semantic_weight=1.0, generative_weight=1.0, predictive_weight=0.3,
    target="mean", stop_gradient=True,
)  # fmt: skip
GOALS = {
    "0.6B contrastive step, plain": 0.35,
    "0.6B contrastive step, cached": 0.28,
    "1.7B contrastive step, plain": 0.42,
    "1.7B contrastive step, cached": 0.33,
    "8B full fine-tuning": 0.40,
    "8B LoRA": 0.45,
}  # share of the maker's peak


def lines(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    """What fits this shape; adapters come last, since they stay in the decoder."""
    form, pairs = form_of(model.tokenizer), rows(shape, shape.tokens // 4)
    packs = pack(CONTRASTIVE.sequences(pairs, form), shape.chunk)
    measure = partial(measured, shape=shape, packs=packs, peak=peak, repeats=repeats)
    for name, keep in (("plain", 10**9), ("cached", 1)):
        if shape.plain or name == "cached":
            run = partial(compute_gradient, model, CONTRASTIVE, form, pairs, shape.chunk, keep)
            yield measure(f"contrastive step, {name}", run, model)
    if shape.plain:
        yield from beside(shape, model, form, pairs, repeats)
        yield from unified(shape, model, peak, repeats)
        return
    name, update = updated(model)
    run = partial(compute_gradient, model, CONTRASTIVE, form, pairs, shape.chunk)
    yield measure(f"full fine-tuning, cached, {name}", lambda: update(run), model)
    model.zero_grad(set_to_none=True)
    Lora(r=16, alpha=32, dropout=0.0, targets=["attention", "ffn"]).apply(model)
    name, update = updated(model)
    yield measure(f"LoRA, cached, {name}", lambda: update(run), model)
    model.zero_grad(set_to_none=True)


def form_of(tokenizer: PreTrainedTokenizerBase, slots: int = 0) -> Format:
    return Format(
        template=PLAIN,
        tokenizer=tokenizer,
        plan=CAUSAL,
        slots=slots,
        document_slots=min(1, slots),
        query_length=2**15,
        document_length=2**15,
        answer_length=2**15,
    )


def rows(shape: Shape, tokens: int) -> list[TrainingRow]:
    """Queries with documents of about `tokens` tokens in all, and answers."""
    smaller = replace(shape, tokens=tokens)
    documents, answers = (texts(smaller, "passages", seed) for seed in (3, 4))
    queries = texts(shape, "queries", 5)
    return [TrainingRow(query=q, positive=d, answer=a) for q, d, a in zip(queries, documents, answers, strict=False)]


def measured(
    what: str,
    run: Callable[[], object],
    model: UnifiedLM,
    *,
    shape: Shape,
    packs: Sequence[PackedBatch],
    peak: float,
    repeats: int,
    parity: str = "",
) -> Measured:
    """One kind of step; what is recomputed is not counted as work."""
    taken, memory = seconds(run, model.device, repeats)
    name = f"{shape.name} {what}"
    return Measured(
        what=name,
        seconds=taken,
        tokens_per_s=sum(map(len, packs)) / taken,
        peak_gib=memory,
        goal=next((goal for start, goal in GOALS.items() if name.startswith(start)), None),
        parity=parity,
        **shares(training_flops(model, packs), taken, peak, model.device),
    )


def updated(model: UnifiedLM) -> tuple[str, Callable[[Callable[[], object]], None]]:
    """AdamW on what learns (8-bit states where bitsandbytes is there), and a way to run a step and apply it."""
    options = {"steps": 1000, "schedule": "constant", "warmup": 0, "weight_decay": 0.0, "betas": (0.9, 0.999)}
    recipe = Optim(learning_rate=1e-5, eps=1e-8, clip=1.0, slots_ratio=1.0, **options)
    try:
        optimizer, name = replace(recipe, states="8bit").build_optimizer(model), "AdamW with 8-bit states"
    except ValueError:
        optimizer, name = recipe.build_optimizer(model), "AdamW"

    def update(run: Callable[[], object]) -> None:
        run()
        recipe.set_learning_rates(optimizer, 0)
        recipe.clip_gradients(optimizer)
        optimizer.step()

    return name, update


def beside(shape: Shape, model: UnifiedLM, form: Format, pairs: list[TrainingRow], repeats: int) -> Iterator[Measured]:
    """sentence-transformers' cached loss on the same texts and weights, by tokens and by count."""
    other, how = peer(model)
    sides = [[row.query for row in pairs], [row.positive for row in pairs]]
    tokens = sum(map(len, CONTRASTIVE.sequences(pairs, form)))
    found = compute_gradient(model, CONTRASTIVE, form, pairs, shape.chunk)["contrastive"]
    model.zero_grad(set_to_none=True)
    settings = {
        f"{shape.chunk} tokens": compute_peer_gradient(other, sides, mini_batch_num_tokens=shape.chunk),
        "batches of 32": compute_peer_gradient(other, sides, mini_batch_size=32),
    }
    for name, run in settings.items():
        parity = close(found, run(), model)
        taken, memory = seconds(run, model.device, repeats)
        yield Measured(
            what=f"{shape.name} contrastive step, sentence-transformers cached ({how}), {name}",
            seconds=taken,
            tokens_per_s=tokens / taken,
            peak_gib=memory,
            parity=parity,
        )


def close(ours: float, theirs: float, model: UnifiedLM) -> str:
    """Raises AssertionError where a loss differs by more than 1e-4 of its size, or 2e-2 in half precision."""
    off = abs(ours - theirs) / abs(theirs)
    if not off <= (1e-4 if model.backbone.dtype == torch.float32 else 2e-2):
        raise AssertionError(f"the steps' losses differ: {ours} and {theirs}")
    return f"loss within {off:.0e}"


def unified(shape: Shape, model: UnifiedLM, peak: float, repeats: int) -> Iterator[Measured]:
    """Query, slots, answer and document in one forward; in three packed ones; and in three padded ones."""
    made = UnifiedLM(model.backbone, model.tokenizer, slots=SLOTS)
    form, few = form_of(model.tokenizer, SLOTS), rows(shape, shape.budget // 2)
    packs = pack(ULME.sequences(few, form), 10**9)
    measure = partial(measured, model=made, shape=shape, packs=packs, peak=peak, repeats=repeats)
    ways: dict[str, Callable[[], float]] = {
        "one forward": lambda: weighted(compute_gradient(made, ULME, form, few, 10**9)),
        "three packed forwards": lambda: weighted(three_packed(made, form, few)),
        "three padded forwards": lambda: run_three_forwards(made, ULME, form, few),
    }
    wanted, slope = ways["three padded forwards"](), flatten_gradient(made)
    for name, run in ways.items():
        parity = close(run(), wanted, made)
        if made.backbone.dtype == torch.float32:
            parity += f", gradient within {relative_distance(flatten_gradient(made), slope):.0e}"
        yield measure(f"unified step, {name}", run, parity=parity)
    made.zero_grad(set_to_none=True)


def weighted(terms: dict[str, float]) -> float:
    return sum(ULME.weights[name] * value for name, value in terms.items())


def three_packed(model: UnifiedLM, form: Format, few: list[TrainingRow]) -> dict[str, float]:
    """The same objective with a query read once for its vectors and once more in front of its answer."""
    model.zero_grad(set_to_none=True)
    queries = form.query_sequences([row.query for row in few])
    answered = form.answer_sequences([row.query for row in few], [row.answer for row in few])
    documents = form.document_sequences([row.positive for row in few])
    parts = {"query": queries, "query_with_answer": answered, "document": documents}
    chunks = [
        collate([replace(s, row=i, role=role) for i, s in enumerate(part)], role).to(model.device)
        for role, part in parts.items()
    ]
    randomness = ChunkRandomness(seed=0, step=0)
    return accumulate_gradients(
        TrainingModule(model, ULME), chunks, ranks=Ranks(), randomness=randomness, keep_chunks=len(chunks)
    )
