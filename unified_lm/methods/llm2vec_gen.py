"""LLM2Vec-Gen: trained slots after a query hold what the frozen decoder would answer, without generating it.

Two linear maps are applied to the slots' states. The output of the first is a soft prompt from which the frozen
decoder must reconstruct its own answer. The mean output of both is the embedding, which is pulled to a teacher's
embedding of that answer. L = w_a * ||e - t||^2 + w_r * CE(answer | soft prompt). Hard negatives are other questions:
they are pulled to the teacher's embeddings of their own answers, and a margin loss pushes the rows away from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from unified_lm.data.rows import TrainingRow
from unified_lm.files import text_hash
from unified_lm.losses import margin_hinge
from unified_lm.methods.base import ChunkOutput, Method, Vectors, build_vectors, group_by_role, sum_token_losses
from unified_lm.methods.generative import answer_sequences
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence, collate
from unified_lm.prompts.format import Format
from unified_lm.readout import Readout

RECONSTRUCT, ALIGN = "reconstruct", "align"


@runtime_checkable
class Teacher(Protocol):
    """A teacher's vectors of answers, by the hash of their text."""

    def lookup(self, hashes: list[int]) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class LLM2VecGen(Method):
    """Source: 2603.10913 v2, section 3, and its released code; use with trainable=slots (or lora, its variant).

    `teacher`: vectors of the rows' answers, as wide as the decoder, written by
    `unified_lm.data.model_made.write_teacher_vectors`; a run makes them with the experiment that its `teacher` names.
    `squared_error`: "mean" over a vector's numbers (the code's MSELoss) or "sum" (the paper's squared norm).
    `margin_weight` above 0 uses the rows' `negative_dialogues`: they get an alignment term of their own, and each row's
    embedding is kept `margin` away from those of the other rows and of all hard negatives of the global batch.
    """

    slots: int
    alignment_weight: float
    reconstruction_weight: float
    squared_error: str
    margin_weight: float = 0.0
    margin: float = 10.0
    teacher: Teacher | None = None

    reads_teacher = True
    second_forward = True  # reconstruction, in chunks that hold answers
    readout = f"slots@{RECONSTRUCT}@{ALIGN}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.slots < 1 or self.squared_error not in ("mean", "sum"):
            raise ValueError(
                f"method.slots={self.slots} must be 1 or more, method.squared_error={self.squared_error} mean or sum"
            )

    @property
    def document_slots(self) -> int:
        return self.slots

    @property
    def roles(self) -> tuple[str, ...]:
        return ("query", "hard_negative") if self.margin_weight else ()

    @property
    def weights(self) -> dict[str, float]:
        more = {"negatives": self.alignment_weight, "margin": self.margin_weight} if self.margin_weight else {}
        return {"alignment": self.alignment_weight, "reconstruction": self.reconstruction_weight} | more

    def heads(self, width: int) -> dict[str, nn.Module]:
        return {RECONSTRUCT: nn.Linear(width, width), ALIGN: nn.Linear(width, width)}

    def check_format(self, form: Format) -> None:
        if (form.plan.embed, form.plan.generate) != ("causal", "causal"):
            raise ValueError(
                f"method llm2vec_gen reads slots before an answer that they must not see, not with attention "
                f"{form.plan.name}; use attention=causal"
            )

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        made = answer_sequences(rows, form)
        if self.margin_weight:
            made = sorted(made + hard_negative_sequences(rows, form), key=lambda sequence: sequence.row)
        return made

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        answered = sum("answer" in sequence.spans for sequence in batch.sequences)
        more = {"negatives": len(batch.sequences) - answered} if self.margin_weight else {}
        return {"alignment": answered, "reconstruction": batch.label_count} | more

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        if self.teacher is None:
            raise ValueError("method llm2vec_gen has no teacher; give the run teacher=EXPERIMENT, or method.teacher")
        found = Readout.from_name(self.readout).read_vectors(
            states, batch, list(range(len(batch.sequences))), model.heads
        )
        wanted = self.teacher.lookup([sequence.hashes["answer"] for sequence in batch.sequences])
        error = (found - torch.as_tensor(wanted).to(found)).square()
        error = error.mean(dim=1) if self.squared_error == "mean" else error.sum(dim=1)
        answered = torch.tensor(["answer" in sequence.spans for sequence in batch.sequences], device=error.device)
        sums = {"alignment": error[answered].sum(), "reconstruction": self.reconstruction_loss(states, batch, model)}
        if not self.margin_weight:
            return ChunkOutput(token_sums=sums)
        vectors = {role: build_vectors(batch, at, found[at]) for role, at in group_by_role(batch, *self.roles).items()}
        return ChunkOutput(vectors=vectors, token_sums=sums | {"negatives": error[~answered].sum()} if tokens else {})

    def reconstruction_loss(self, states: Tensor, batch: PackedBatch, model: UnifiedLM) -> Tensor:
        """Summed cross-entropy of the answers after their soft prompts, in a second forward of the decoder.

        Hard negatives are in this forward too, without labels, so that every chunk runs the decoder twice.
        """
        again = collate([soft_prompt_sequence(sequence) for sequence in batch.sequences], batch.index).to(states.device)
        head = model.heads[RECONSTRUCT]
        read = torch.cat([torch.arange(*batch.span(i, "slots")) for i in range(len(batch.sequences))])
        put = torch.cat([torch.arange(*again.span(i, "slots")) for i in range(len(again.sequences))])
        soft = head(states[read.to(states.device)].to(head.weight.dtype))
        embeddings = model.embed_tokens(again.tokens)
        embeddings = embeddings.index_copy(0, put.to(states.device), soft.to(embeddings.dtype))
        return sum_token_losses(model.run_decoder(embeddings, again.positions, again.layout), again, model)

    def objective(self, vectors: dict[str, Vectors]) -> dict[str, Tensor]:
        """Margin loss of each row against all other rows and hard negatives; rows with the same query are left out."""
        asked = vectors["query"]
        others = [vectors[name] for name in sorted(vectors) if name.startswith("hard_negative")]
        if not others:
            raise ValueError(
                f"method.margin_weight={self.margin_weight} needs rows with negative_dialogues; "
                "use data=llm2vec_gen_negatives, or method.margin_weight=0"
            )
        hashes = torch.cat([v.hashes for v in (asked, *others)])
        candidates = torch.cat([v.values for v in (asked, *others)])
        same = asked.hashes[:, None] == hashes[None]
        return {"margin": margin_hinge(asked.values, candidates, threshold=self.margin, excluded=same)}


def hard_negative_sequences(rows: list[TrainingRow], form: Format) -> list[Sequence]:
    """One query for each hard negative of a row, with the hash of that negative's answer."""
    found = [(i, k, *dialogue) for i, row in enumerate(rows) for k, dialogue in enumerate(row.negative_dialogues)]
    made = form.query_sequences([query for _, _, query, _ in found], [rows[i].instruction for i, *_ in found])
    return [
        replace(sequence, row=i, role=f"hard_negative_{k}", hashes=sequence.hashes | {"answer": text_hash(answer)})
        for sequence, (i, k, _, answer) in zip(made, found, strict=True)
    ]


def soft_prompt_sequence(sequence: Sequence) -> Sequence:
    """The part of a sequence from its slots on: the slots and, if there is one, the answer's turn with its labels."""
    start, stop = sequence.spans["slots"]
    labels = sequence.labels and (IGNORED,) * (stop - start - 1) + sequence.labels[stop - 1 :]
    return replace(sequence, tokens=sequence.tokens[start:], labels=labels, spans={"slots": (0, stop - start)})
