"""Slots: learnable vectors between a query and its answer, from which embeddings are read.

Slots are inserted by position and are not rows of the vocabulary. They are trained, saved and restored whether the
backbone is fully tuned, adapted with LoRA or frozen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

START_WORDS = (" summary", " meaning", " therefore", " answer", " topic", " because", " result", " reason")


class Slots(nn.Module):
    """`count` trained vectors of the decoder's width in float32; `vectors`: [count, d]."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        if count < 1:
            raise ValueError(f"slots need a count of at least one, not {count}; a method with 0 slots builds none")
        self.vectors = nn.Parameter(torch.zeros(count, width))

    def __len__(self) -> int:
        return self.vectors.shape[0]

    @torch.no_grad()
    def initialize(
        self, embedding: nn.Embedding, tokenizer, kind: str = "words", *, words: Sequence[str] = START_WORDS
    ) -> None:
        """Set the slots' start vectors, in one of four ways.

        "words": the embeddings of real words (the default: RMSNorm turns small random vectors into a first gradient
        that is tens of times larger, and clipping then starves the backbone); "mean": the mean embedding at the mean
        row norm, with a tenth of it as noise; "normal": N(0, 0.02), as transformers draws new rows; "eos": the
        embedding of the end-of-sequence token, with a hundredth of its norm as noise so that slots can differ.
        """
        table = embedding.weight.detach().float() * float(getattr(embedding, "embed_scale", 1.0))
        count, width = self.vectors.shape
        noise = torch.randn(count, width).to(table.device)  # drawn from the run's seed
        norm = table.norm(dim=1).mean() / width**0.5
        if kind == "words":
            ids = [tokenizer.encode(words[i % len(words)], add_special_tokens=False)[0] for i in range(count)]
            repeats = torch.tensor([i // len(words) for i in range(count)], device=table.device)[:, None]
            value = table[ids] + repeats * 0.1 * norm * noise
        elif kind == "mean":
            mean = table.mean(dim=0)
            value = mean / mean.norm() * table.norm(dim=1).mean() + 0.1 * norm * noise
        elif kind == "normal":
            value = 0.02 * noise
        elif kind == "eos":
            value = table[tokenizer.eos_token_id] + 0.01 * norm * noise
        else:
            raise ValueError(f"slots cannot start from {kind!r}; use words, mean, normal or eos")
        self.vectors.copy_(value)

    def insert_slots(self, embeddings: Float[Tensor, "T d"], tokens: Tensor) -> Float[Tensor, "T d"]:
        """Replace the embeddings of slot tokens (id -(k + 1) is slot k) by the slots' vectors.

        Without slot tokens the result still depends on the slots, by a zero. Otherwise the tokens would decide whether
        a forward needs gradients, and ranks under FSDP2 would run their collectives in different orders.
        """
        where = (tokens < 0).nonzero().squeeze(1)
        if not where.numel():
            return embeddings + self.vectors.sum().to(embeddings.dtype) * 0
        return embeddings.index_copy(0, where, self.vectors[-tokens[where] - 1].to(embeddings.dtype))
