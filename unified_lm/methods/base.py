"""The contract of a training method, and the helpers that methods share.

A method says how a row becomes sequences, what it reads from the states of a chunk, and its batch-level terms.
Everything else (packing, chunks, ranks, global counts, gradients) is derived from these three in
`unified_lm.training.objective`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from inspect import get_annotations
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unified_lm.data.rows import TrainingRow
from unified_lm.inference.encode import Encoder
from unified_lm.inference.generate import BatchedGenerator
from unified_lm.losses import info_nce, same_row_mask, same_text_mask
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Vectors read from a chunk: row ids [n], text hashes [n] and values [n, d] (float32 or wider)."""

    rows: Int[Tensor, " n"]
    hashes: Int[Tensor, " n"]
    values: Float[Tensor, "n d"]


@dataclass(frozen=True, kw_only=True)
class ChunkOutput:
    """What the forward of a chunk hands to the objective: named vectors, and token losses as sums.

    The graph is cut at `vectors`. `anchor` is `0 * sum(states and parameters)`: it gives every parameter a zero
    gradient, so that FSDP runs the same collectives on every rank.
    """

    vectors: dict[str, Vectors] = field(default_factory=dict)
    token_sums: dict[str, Float[Tensor, ""]] = field(default_factory=dict)
    anchor: Float[Tensor, ""] | None = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training objective. Subclasses are frozen dataclasses whose fields are the settings of a `conf/method/*.yaml`.

    A subclass implements `weights`, `sequences` and `read`, says its `readout`, and mostly has an `objective`. Every
    other hook has a default here; a subclass replaces it by a field, a class attribute, a property or a method.
    `similarity` compares its vectors, in the loss and where they are scored: "cosine" or "dot".
    """

    similarity: str = "cosine"

    readout: ClassVar[str]
    """Read-out by which its queries and documents are embedded when scored, such as "mean" or "slot_0"."""
    slots: ClassVar[int] = 0
    """Number of slots after a query."""
    document_slots: ClassVar[int] = 0
    """Number of slots after a document."""
    roles: ClassVar[tuple[str, ...]] = ()
    """Roles (or their first letters) of the sequences that vectors are read from; without any, one pass suffices."""
    attention_dropout: ClassVar[float | None] = None
    """Attention dropout of the decoder in training (None: the decoder's own)."""
    second_forward: ClassVar[bool] = False
    """Whether `read` runs the decoder once more, in every chunk. Under FSDP all ranks must run it equally often."""
    next_token_term: ClassVar[str | None] = None
    """The term that is a mean next-token loss, if any; its first value tells whether the weights were loaded."""
    reads_teacher: ClassVar[bool] = False
    """Whether it has a field `teacher` for a teacher's vectors of the rows' answers."""
    instruction_sides: ClassVar[Seq[str]] = ()
    """Sides ("query", "document") whose instruction goes into a prompt of the method's own when it is scored."""
    trains: ClassVar[bool] = True
    """Whether there is something to train."""

    def __init_subclass__(cls) -> None:
        """Keep fields required that replace a hook: a dataclass would take the hook's default for the field's own."""
        for name in get_annotations(cls):
            if hasattr(Method, name) and name not in cls.__dict__:
                setattr(cls, name, field())

    def __post_init__(self) -> None:
        """Raises `ValueError` for a temperature that is not above 0; subclasses with checks of their own call it."""
        for setting in fields(self):
            if setting.name.endswith("temperature") and not getattr(self, setting.name) > 0:
                value = getattr(self, setting.name)
                raise ValueError(f"method.{setting.name}={value} divides by nothing; use a value above 0, such as 0.05")

    @property
    @abstractmethod
    def weights(self) -> dict[str, float]:
        """Weight of each term, of token terms and of batch-level terms alike."""

    def weights_at(self, step: int) -> dict[str, float]:
        """`weights` at a step (from 0), for methods whose weights change in training."""
        return self.weights

    def heads(self, width: int) -> dict[str, nn.Module]:
        """Modules that the method adds to a decoder of this width, by name."""
        return {}

    def check_format(self, form: Format) -> None:
        """Raises `ValueError` for a combination that cannot work, naming both options and the way out."""
        return None

    @abstractmethod
    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        """The sequences of a global batch, each with the index of its row; a row without use gives none."""

    def counts(self, batch: PackedBatch) -> Mapping[str, int | float]:
        """Number of labels (or sum of their weights) of each token term in a chunk, known before any forward."""
        return {}

    @abstractmethod
    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        """Vectors and token sums of a chunk from its last hidden states [T, d]; without `tokens`, vectors only."""

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        """Batch-level terms as a pure function of the *global* batch's vectors."""
        return {}

    def build_embedder(self, encoder: Encoder, generator: BatchedGenerator | None) -> Any:
        """The embedder that is scored: the encoder, or one around it. `generator`: None where the model has none."""
        return encoder


def text_of_row(row: TrainingRow) -> str | None:
    """The text of a row for objectives on text alone: its plain text, else its document, answer or query."""
    return next((text for text in (row.text, row.positive, row.answer, row.query) if text), None)


def merge_vectors(parts: Iterable[Vectors]) -> Vectors:
    """Concatenate the vectors of several chunks in the order of row ids, which does not depend on the chunks."""
    parts = list(parts)
    rows = torch.cat([part.rows for part in parts])
    order = rows.argsort(stable=True)
    return Vectors(
        rows=rows[order],
        hashes=torch.cat([part.hashes for part in parts])[order],
        values=torch.cat([part.values for part in parts])[order],
    )


def build_vectors(batch: PackedBatch, which: list[int], values: Float[Tensor, "n d"], text: str = "text") -> Vectors:
    """Attach row ids and text hashes to the vectors of the sequences `which`; `text` names the hash to use."""
    return Vectors(
        rows=torch.tensor([batch.sequences[i].row for i in which], device=values.device),
        hashes=torch.tensor([batch.sequences[i].hashes[text] for i in which], device=values.device),
        values=values,
    )


def read_vectors_by_role(
    states: Tensor, batch: PackedBatch, readouts: dict[str, Readout], heads: nn.ModuleDict | None = None
) -> dict[str, Vectors]:
    """Pool the vectors of each role that starts with a key of `readouts`, by that read-out."""
    return {
        role: build_vectors(batch, which, readouts[start].read_vectors(states, batch, which, heads))
        for start in readouts
        for role, which in group_by_role(batch, start).items()
    }


def sum_token_losses(states: Tensor, batch: PackedBatch, model: UnifiedLM) -> Float[Tensor, ""]:
    """Summed cross-entropy of the labelled positions; logits are computed for these only."""
    where = (batch.labels != IGNORED).nonzero().squeeze(1)
    return model.sum_cross_entropy(states[where], batch.labels[where])


def group_by_role(batch: PackedBatch, *prefixes: str) -> dict[str, list[int]]:
    """Indices of a chunk's sequences by role, for roles that start with one of the prefixes."""
    out: dict[str, list[int]] = {}
    for i, sequence in enumerate(batch.sequences):
        if sequence.role.startswith(prefixes):
            out.setdefault(sequence.role, []).append(i)
    return out


def document_sequences(rows: list[TrainingRow], form: Format) -> list[Sequence]:
    """Sequences of the documents of every row with a positive: roles "document", "negative_0", "negative_1", ..."""
    texts, owners = [], []
    for number, row in enumerate(rows):
        if row.positive is not None:
            texts += [row.positive, *row.negatives]
            owners += [(number, "document")] + [(number, f"negative_{k}") for k in range(len(row.negatives))]
    documents = form.document_sequences(texts)
    return [replace(d, row=number, role=role) for d, (number, role) in zip(documents, owners, strict=True)]


def contrastive_loss(
    vectors: dict[str, Vectors], *, temperature: float, symmetric: bool, similarity: str, query: str = "query"
) -> Float[Tensor, ""] | None:
    """InfoNCE of the queries that have a document against all documents and hard negatives of the global batch.

    Candidates with the text of the query or of its positive are masked out of the negatives, on whichever rank they
    were computed. `symmetric`: the mean of both directions (documents against queries has no hard negatives). Returns
    None where no query of the batch has a document. Raises `ValueError` for a single candidate: there is nothing to
    contrast. Source: van den Oord et al. 2018 (InfoNCE); in-batch negatives as in Karpukhin et al. 2020.
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
        excluded=same_text_mask(q.hashes, hashes, targets),
        similarity=similarity,
    )
    if not symmetric:
        return forward
    same = same_row_mask(d.hashes[targets], q.hashes)
    own = torch.arange(len(targets), device=targets.device)
    backward = info_nce(d.values[targets], q.values, own, temperature=temperature, excluded=same, similarity=similarity)
    return (forward + backward) / 2
