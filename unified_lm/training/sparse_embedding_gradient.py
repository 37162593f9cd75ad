"""Sparse gradients of the input embedding on a CPU.

A chunk looks up few rows of the embedding, but a dense gradient is as large as the vocabulary, and one is created and
added for every chunk. On a CPU this is a good part of a small decoder's step. On a GPU it costs nothing, and sparse
gradients would be added in no fixed order, so they stay dense there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def sparse_embedding_gradient(embedding: nn.Module, on: bool = True) -> Iterator[None]:
    """Inside, the backward of a forward adds only the looked-up rows to the gradient of an embedding on a CPU."""
    if not (on and isinstance(embedding, nn.Embedding) and embedding.weight.device.type == "cpu"):
        yield
        return
    before, embedding.sparse = embedding.sparse, True
    try:
        yield
    finally:
        embedding.sparse = before


def densify_gradient(embedding: nn.Module) -> None:
    """Make a sparse gradient dense, so that later rows are added to one matrix. Call it after each backward."""
    weight = embedding.weight
    if weight.grad is not None and weight.grad.layout is not torch.strided:
        weight.grad = weight.grad.to_dense()
