"""The gradient of the embedding, added row by row.

A chunk looks up few of its rows, yet a dense gradient is as large as the vocabulary, made and added for every chunk.
On a CPU that is a good part of a small decoder's step; on a GPU it is nothing, and rows would be added in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def sparse_embedding_gradient(embedding: nn.Module, on: bool = True) -> Iterator[None]:
    """Forwards inside give the rows that they look up as the embedding's gradient, where it is on a CPU."""
    if not (on and isinstance(embedding, nn.Embedding) and embedding.weight.device.type == "cpu"):
        yield
        return
    before, embedding.sparse = embedding.sparse, True
    try:
        yield
    finally:
        embedding.sparse = before


def densify_gradient(embedding: nn.Module) -> None:
    """To be called after a backward: a gradient of rows alone becomes the matrix that later rows are added to."""
    weight = embedding.weight
    if weight.grad is not None and weight.grad.layout is not torch.strided:
        weight.grad = weight.grad.to_dense()
