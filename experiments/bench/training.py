"""Training steps: cached contrastive against sentence-transformers, one packed forward against three padded ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.bench.material import Material
from experiments.bench.measure import Comparison, compare_costs
from unified_lm.data.rows import TrainingRow
from unified_lm.methods.contrastive import Contrastive
from unified_lm.methods.ulme import Ulme
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, Sequence, pack
from unified_lm.prompts.format import Format
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PAIRS, TRIPLES, SLOTS, BUDGET, TEMPERATURE = 32, 16, 8, 1024, 0.05


def compare_training(material: Material, repeats: int) -> Iterator[Comparison]:
    yield compare_contrastive_step(material, repeats)
    yield compare_unified_step(material, repeats)


def take_distinct_rows(rows: list[TrainingRow], count: int) -> list[TrainingRow]:
    """The first rows whose texts all differ: the peer masks no duplicates."""
    seen: set[str] = set()
    chosen = []
    for row in rows:
        if not {row.query, row.positive} & seen:
            seen |= {row.query, row.positive}
            chosen.append(row)
    return chosen[:count]


def compute_gradient(
    model: UnifiedLM,
    method: Contrastive | Ulme,
    form: Format,
    rows: list[TrainingRow],
    budget: int,
    keep_chunks: int = 1,
) -> dict[str, float]:
    """The gradient of one batch, text in: what the training loop does between two optimizer steps."""
    model.zero_grad(set_to_none=True)
    chunks = [chunk.to(model.device) for chunk in pack(method.sequences(rows, form), budget)]
    randomness = ChunkRandomness(seed=0, step=0)
    return accumulate_gradients(
        TrainingModule(model, method), chunks, ranks=Ranks(), randomness=randomness, keep_chunks=keep_chunks
    )


def flatten_gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def relative_distance(a: Tensor, b: Tensor) -> float:
    """Distance of two gradients relative to the second one's norm."""
    return float((a - b).norm() / b.norm())


def assert_same_gradient(ours: float, theirs: float, a: Tensor, b: Tensor) -> str:
    """Raises AssertionError where loss or gradient differ by more than 1e-4 of their size."""
    loss, grad = abs(ours - theirs) / abs(theirs), relative_distance(a, b)
    if not (loss <= 1e-4 and grad <= 1e-4):
        raise AssertionError(f"the steps differ: loss {ours} and {theirs}, gradient by {grad:.1e}")
    return f"loss {theirs:.5f} within {loss:.0e}, gradient within {grad:.0e}"


def compute_peer_gradient(peer: SentenceTransformer, sides: list[list[str]], **options: int) -> Callable[[], float]:
    """sentence-transformers' cached loss and its gradient, text in."""
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    loss = CachedMultipleNegativesRankingLoss(peer, scale=1 / TEMPERATURE, **options)

    def moved(features: dict[str, Any]) -> dict[str, Any]:
        return {name: x.to(peer.device) if isinstance(x, Tensor) else x for name, x in features.items()}

    def run() -> float:
        peer.zero_grad(set_to_none=True)
        value = loss([moved(peer.preprocess(texts)) for texts in sides], None)
        value.backward()
        return float(value.detach())

    return run


def compare_contrastive_step(material: Material, repeats: int) -> Comparison:
    rows = take_distinct_rows(material.pairs, PAIRS // material.size)
    model, form = material.build_our_model(), material.build_format()
    method = Contrastive(temperature=TEMPERATURE, symmetric=False, readout="mean")
    peer = material.build_peer()
    sides = [[row.query for row in rows], [row.positive for row in rows]]
    peers = {
        "CachedMultipleNegativesRankingLoss, batches of 8": compute_peer_gradient(peer, sides, mini_batch_size=8),
        f"CachedMultipleNegativesRankingLoss, {BUDGET} tokens": compute_peer_gradient(
            peer, sides, mini_batch_num_tokens=BUDGET
        ),
    }
    found = compute_gradient(model, method, form, rows, BUDGET)["contrastive"]
    wanted = next(iter(peers.values()))()
    body = flatten_gradient(model.backbone.base_model)
    return compare_costs(
        f"cached contrastive step, {len(rows)} pairs",
        lambda: compute_gradient(model, method, form, rows, BUDGET),
        peers,
        parity=assert_same_gradient(found, wanted, body, flatten_gradient(peer)),
        repeats=repeats,
        goal=1.8,
        memory_goal=0.5,
    )


def compare_unified_step(material: Material, repeats: int) -> Comparison:
    rows = take_distinct_rows([row for row in material.pairs if row.answer], TRIPLES // material.size)
    model = UnifiedLM(copy.deepcopy(material.decoder), material.tokenizer, slots=SLOTS)
    peer = UnifiedLM(copy.deepcopy(material.decoder), material.tokenizer, slots=SLOTS)
    form = material.build_format(SLOTS)
    method = Ulme(
        slots=SLOTS, temperature=TEMPERATURE, semantic_weight=1.0, generative_weight=1.0, predictive_weight=0.3,
        target="mean", stop_gradient=True,
    )  # fmt: skip
    terms = compute_gradient(model, method, form, rows, 10**9)
    found = sum(method.weights[name] * value for name, value in terms.items())
    wanted = run_three_forwards(peer, method, form, rows)
    return compare_costs(
        f"unified step, {len(rows)} rows of query, {SLOTS} slots, answer and document",
        lambda: compute_gradient(model, method, form, rows, 10**9),
        {"three padded forwards": lambda: run_three_forwards(peer, method, form, rows)},
        parity=assert_same_gradient(found, wanted, flatten_gradient(model), flatten_gradient(peer)),
        repeats=repeats,
        goal=2.5,
    )


def run_three_forwards(model: UnifiedLM, method: Ulme, form: Format, rows: list[TrainingRow]) -> float:
    """The same objective as published code computes it: queries, answers and documents apart, padded, all logits."""
    model.zero_grad(set_to_none=True)
    queries = form.query_sequences([row.query for row in rows])
    answered = form.answer_sequences([row.query for row in rows], [row.answer for row in rows])
    documents = form.document_sequences([row.positive for row in rows])
    device = model.device
    at = torch.arange(len(rows), device=device)
    asked, told, read = (forward_padded(model, sequences) for sequences in (queries, answered, documents))
    first = torch.tensor([s.spans["slots"][0] for s in queries])
    semantic = F.normalize(asked[at, first].float(), dim=1)
    positives = F.normalize(read[at, torch.tensor([s.spans["slots"][0] for s in documents])].float(), dim=1)
    scores = semantic @ positives.T / TEMPERATURE
    loss = (F.cross_entropy(scores, at) + F.cross_entropy(scores.T, at)) / 2 * method.semantic_weight
    labels = torch.full(told.shape[:2], IGNORED, device=device)
    for i, sequence in enumerate(answered):
        labels[i, : len(sequence)] = torch.tensor(sequence.labels, device=device)
    logits = model.backbone.lm_head(told)
    loss = loss + F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    reason = F.normalize(asked[at, first + method.slots - 1].float(), dim=1)
    spans = [s.spans["answer"] for s in answered]
    targets = torch.stack([told[i, a:b].float().mean(0) for i, (a, b) in enumerate(spans)]).detach()
    coupling = F.cross_entropy(reason @ F.normalize(targets, dim=1).T / TEMPERATURE, at)
    loss = loss + method.predictive_weight * coupling
    loss.backward()
    return float(loss.detach())


def forward_padded(model: UnifiedLM, sequences: list[Sequence]) -> Tensor:
    """States [n, longest, d] of sequences padded on the right, through transformers' own sdpa attention and mask."""
    longest = max(map(len, sequences))
    tokens = torch.full((len(sequences), longest), model.tokenizer.pad_token_id, device=model.device)
    mask = torch.zeros_like(tokens)
    for i, sequence in enumerate(sequences):
        tokens[i, : len(sequence)] = torch.tensor(sequence.tokens, device=model.device)
        mask[i, : len(sequence)] = 1
    embeddings = model.embed_tokens(tokens.flatten()).unflatten(0, tokens.shape)
    model.backbone.set_attn_implementation("sdpa")
    out = model.backbone.base_model(inputs_embeds=embeddings, attention_mask=mask, use_cache=False)
    model.backbone.set_attn_implementation("unified")
    return out.last_hidden_state
