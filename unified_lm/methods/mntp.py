"""Masked next-token prediction: a masked token is predicted from the position *before* it, with attention both ways.

This is LLM2Vec's first stage. It teaches a causal decoder to use attention to the future. The head keeps its
pre-trained task: it predicts position i from position i - 1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from torch import Tensor

from unified_lm.data.rows import TrainingRow
from unified_lm.methods.base import ChunkOutput, Method, sum_token_losses, text_of_row
from unified_lm.model import UnifiedLM
from unified_lm.packing import IGNORED, PackedBatch, Sequence
from unified_lm.prompts.format import Format

MASKING = ("bert", "all")


@dataclass(frozen=True, kw_only=True)
class MaskedNext(Method):
    """Source: BehnamGhader et al. 2024 (LLM2Vec), section 2.1, and its released configurations.

    `share`: the probability with which each token of a text is to be predicted (at least one always is). `masking`:
    "bert" replaces 80 % of these by the mask token and 10 % by a random token, and keeps 10 %; "all" masks every one.
    `mask_token` must be one token. What is masked depends on the text and `mask_seed` alone, so it is the same in every
    epoch. `readout` is used when the model is scored.
    """

    mask_token: str
    share: float
    masking: str
    readout: str
    mask_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masking not in MASKING:
            raise ValueError(f"method.masking={self.masking} is unknown; use one of {', '.join(MASKING)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"method.share={self.share} of the tokens cannot be masked; use more than 0, at most 1")

    @property
    def weights(self) -> dict[str, float]:
        return {"masked": 1.0}

    def check_format(self, form: Format) -> None:
        if form.plan.embed != "bidirectional":
            raise ValueError(
                f"method mntp with attention.embed={form.plan.embed} would only repeat next-token prediction on a "
                "damaged text; use attention=bidirectional or attention=gritlm"
            )
        self.mask_token_id(form)

    def mask_token_id(self, form: Format) -> int:
        """Id of the mask token. Raises `ValueError` where the tokenizer splits it."""
        ids = form.tokenizer.encode(self.mask_token, add_special_tokens=False)
        if len(ids) != 1:
            raise ValueError(
                f"method.mask_token={self.mask_token!r} is {len(ids)} tokens for this tokenizer; use one such as _ "
            )
        return ids[0]

    def sequences(self, rows: list[TrainingRow], form: Format) -> list[Sequence]:
        texts = [(i, text_of_row(row)) for i, row in enumerate(rows)]
        return [
            replace(self.mask_tokens(form.plain_sequence(text), form), row=i) for i, text in texts if text is not None
        ]

    def mask_tokens(self, plain: Sequence, form: Format) -> Sequence:
        """Mask tokens of a plain text and label each at the position before it; special tokens are never masked."""
        draw = random.Random(f"{self.mask_seed}/{plain.hashes['text']}")
        tokens, labels = list(plain.tokens), [IGNORED] * len(plain)
        candidates = [i for i in range(1, len(tokens)) if tokens[i] not in form.special_ids]
        chosen = [i for i in candidates if draw.random() < self.share] or (candidates and [draw.choice(candidates)])
        for i in chosen:
            labels[i - 1] = tokens[i]
            luck = 0.0 if self.masking == "all" else draw.random()
            if luck < 0.9:
                tokens[i] = self.mask_token_id(form) if luck < 0.8 else draw.randrange(len(form.tokenizer))
        return replace(plain, tokens=tuple(tokens), labels=tuple(labels), mode=form.plan.embed)

    def counts(self, batch: PackedBatch) -> dict[str, int]:
        return {"masked": batch.label_count}

    def read(self, states: Tensor, batch: PackedBatch, model: UnifiedLM, *, tokens: bool) -> ChunkOutput:
        return ChunkOutput(
            token_sums={"masked": sum_token_losses(states, batch, model)} if tokens and batch.label_count else {}
        )
