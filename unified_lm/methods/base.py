"""What a method says, and nothing more: how a row becomes sequences, what it reads, and its batch-level terms.

Everything else (packing, chunks, ranks, global counts, gradients) is derived from these three in
`unified_lm.training.objective`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unified_lm.data.rows import TrainingRow
from unified_lm.losses import info_nce, same_pair, same_text
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence
from unified_lm.prompts.template import Format
from unified_lm.readout import Readout


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Vectors read from a chunk: row ids [n], text hashes [n] and values [n, d] (float32 or wider)."""

    rows: Int[Tensor, " n"]
    hashes: Int[Tensor, " n"]
    values: Float[Tensor, "n d"]


@dataclass(frozen=True, kw_only=True)
class ChunkOutput:
    """What a forward hands to the objective: the cut points of the graph, and token losses as sums.

    `anchor` is a zero that hangs on everything: its backward runs through the whole forward and changes nothing.
    """

    vectors: dict[str, Vectors] = field(default_factory=dict)
    token_sums: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    anchor: Float[Tensor, ""] | None = None


@runtime_checkable
class Method(Protocol):
    """A training objective.

    A method may also have `heads(width)` (modules that it adds to the model, see `heads_of`), `weights_at(step)` (where
    its weights depend on the step) and `attention_dropout` (that it asks of the decoder).
    """

    @property
    def weights(self) -> dict[str, float]:
        """One weight a term, of token sums and of batch terms alike."""

    @property
    def slots(self) -> int:
        """How many slots stand behind a query."""

    @property
    def document_slots(self) -> int:
        """How many slots stand behind a document."""

    @property
    def readout(self) -> str:
        """How its queries and documents are embedded when scored."""

    @property
    def similarity(self) -> str:
        """What compares its vectors: "cosine" or "dot"."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles (or their beginnings) of the sequences that vectors are read from."""

    def check_format(self, form: Format) -> None:
        """Refuse a combination that cannot work, with a `ValueError` that names both options and the way out."""

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        """The sequences of a global batch, each with the index of its row; a row without use gives none."""

    def counts(self, batch: PackedBatch) -> dict[str, int] | dict[str, float]:
        """How many labels (or what sum of their weights) each token term has in a chunk, known before any forward."""

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        """Vectors and token sums of a chunk; token sums only where `tokens`, so that one pass skips the head."""

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        """Batch-level terms as a pure function of the *global* batch's vectors."""


def heads_of(method: object, width: int) -> dict[str, nn.Module]:
    """The modules that a method adds to a decoder of this width, by name; most add none."""
    return method.heads(width) if hasattr(method, "heads") else {}


def weights_at(method: Method, step: int) -> dict[str, float]:
    """The weights of the terms at a step (from 0)."""
    return method.weights_at(step) if hasattr(method, "weights_at") else method.weights


def text_of_row(row: TrainingRow) -> str | None:
    """The text of a row for objectives on text alone: its plain text, else its document, its answer or its query."""
    return next((text for text in (row.text, row.positive, row.answer, row.query) if text), None)


def merge_vectors(parts: Iterable[Vectors]) -> Vectors:
    """Vectors of several chunks as one, ordered by row id so that the cut into chunks leaves no trace."""
    parts = list(parts)
    rows = torch.cat([part.rows for part in parts])
    order = rows.argsort(stable=True)
    return Vectors(
        rows=rows[order],
        hashes=torch.cat([part.hashes for part in parts])[order],
        values=torch.cat([part.values for part in parts])[order],
    )


def build_vectors(batch: PackedBatch, which: list[int], values: Float[Tensor, "n d"], text: str = "text") -> Vectors:
    """Vectors of the sequences `which` of a chunk, with their row ids and the hashes of the text they stand for."""
    return Vectors(
        rows=torch.tensor([batch.sequences[i].row for i in which], device=values.device),
        hashes=torch.tensor([batch.sequences[i].hashes[text] for i in which], device=values.device),
        values=values,
    )


def read_vectors_by_role(
    states: Tensor, batch: PackedBatch, readouts: dict[str, Readout], heads: nn.ModuleDict | None = None
) -> dict[str, Vectors]:
    """One set of vectors a role, for roles that start with a key of `readouts`."""
    return {
        role: build_vectors(batch, which, readouts[start].vectors(states, batch, which, heads))
        for start in readouts
        for role, which in group_by_role(batch, start).items()
    }


def sum_token_losses(states: Tensor, batch: PackedBatch, model: UnifiedLM) -> Float[Tensor, ""]:
    """Summed cross-entropy of the labelled positions; the head sees no other row."""
    where = (batch.labels != IGNORED).nonzero().squeeze(1)
    return model.cross_entropy(states[where], batch.labels[where])


def group_by_role(batch: PackedBatch, *prefixes: str) -> dict[str, list[int]]:
    """Indices of a chunk's sequences by role, for roles that start with one of the prefixes."""
    out: dict[str, list[int]] = {}
    for i, sequence in enumerate(batch.sequences):
        if sequence.role.startswith(prefixes):
            out.setdefault(sequence.role, []).append(i)
    return out


def document_sequences(rows: list[TrainingRow], form: Format) -> list[Sequence]:
    """Documents of every row that has a positive: roles "document", "negative_0", "negative_1", ..."""
    texts, places = [], []
    for number, row in enumerate(rows):
        if row.positive is not None:
            texts += [row.positive, *row.negatives]
            places += [(number, "document")] + [(number, f"negative_{k}") for k in range(len(row.negatives))]
    documents = form.documents(texts)
    return [replace(d, row=number, role=role) for d, (number, role) in zip(documents, places, strict=True)]


def contrastive_loss(
    vectors: dict[str, Vectors], *, temperature: float, symmetric: bool, similarity: str, query: str = "query"
) -> Float[Tensor, ""] | None:
    """InfoNCE of the queries that have a document against all documents and hard negatives of the global batch.

    Candidates that repeat a query's own text or its positive's are no negatives, wherever they were computed. With
    `symmetric` the mean of both directions (documents against queries has no hard negatives). None where no query of
    the batch has a document. Raises `ValueError` for a single candidate: there is nothing to contrast.
    """
    if "document" not in vectors or query not in vectors:
        return None
    q, d = vectors[query], vectors["document"]
    chosen = torch.isin(q.rows, d.rows)
    q = Vectors(rows=q.rows[chosen], hashes=q.hashes[chosen], values=q.values[chosen])
    extra = [vectors[name] for name in sorted(vectors) if name.startswith("negative")]
    candidates = torch.cat([d.values, *(v.values for v in extra)])
    hashes = torch.cat([d.hashes, *(v.hashes for v in extra)])
    if len(candidates) < 2:
        raise ValueError("one candidate for the whole batch: add rows to the step, or negatives to the data")
    targets = torch.searchsorted(d.rows, q.rows)
    forward = info_nce(
        q.values,
        candidates,
        targets,
        temperature=temperature,
        excluded=same_text(q.hashes, hashes, targets),
        similarity=similarity,
    )
    if not symmetric:
        return forward
    same = same_pair(d.hashes[targets], q.hashes)
    own = torch.arange(len(targets), device=targets.device)
    backward = info_nce(d.values[targets], q.values, own, temperature=temperature, excluded=same, similarity=similarity)
    return (forward + backward) / 2
