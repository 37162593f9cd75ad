"""Tiled losses: the value and the gradient of the plain form, without its matrix."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models import apart, form, gradient, mixed_rows, unified
from unified_lm.losses import head_cross_entropy, info_nce, same_row_mask, same_text_mask, token_cross_entropy
from unified_lm.methods.generative import Generative
from unified_lm.packing import collate
from unified_lm.tiled_cross_entropy import DuplicateMask, tiled_cross_entropy


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(rows, columns, targets, scale, bias=None, mask=None):
    scores = scale * rows @ columns.T
    scores = scores if bias is None else scores + bias
    if mask is not None:
        scores = scores.masked_fill(mask & ~F.one_hot(targets, len(columns)).bool(), float("-inf"))
    return F.cross_entropy(scores, targets, reduction="sum")


def grads(loss, *inputs):
    return torch.autograd.grad(loss * 0.7, inputs)


class Largest(TorchDispatchMode):
    """The most elements that any tensor made inside has."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        found = out if isinstance(out, (tuple, list)) else (out,)
        self.elements = max([self.elements, *(t.numel() for t in found if isinstance(t, torch.Tensor))])
        return out


@pytest.mark.parametrize("tile", [1, 3, 7, 8, 100])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("how", [None, "mask", "repeats"])
def test_any_tile_gives_the_value_and_gradient_of_the_plain_form(tile, biased, how):
    rows, columns, bias = draw(7, 5).requires_grad_(), draw(11, 5, seed=1).requires_grad_(), draw(11).requires_grad_()
    targets = torch.tensor([0, 3, 3, 10, 5, 6, 1])
    repeats = DuplicateMask(
        rows=torch.tensor([[1, 2, 3, 1, 9, 9, 4], [0, 0, 0, 0, 0, 7, 0]]),
        columns=torch.tensor([[1, 2, 3, 4, 5, 6, 9, 9, 1, 2, 3], [7, 8, 9, 7, 1, 1, 1, 1, 1, 1, 1]]),
    )
    mask = None if how is None else repeats.mask_rows()
    excluded = {None: None, "mask": mask, "repeats": repeats}[how]
    inputs = (rows, columns, bias) if biased else (rows, columns)
    bias = bias if biased else None
    wanted = plain(rows, columns, targets, 3.0, bias, mask)
    found = tiled_cross_entropy(rows, columns, targets, scale=3.0, bias=bias, excluded=excluded, tile=tile)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)
    for a, b in zip(grads(found, *inputs), grads(wanted, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_info_nce_equals_the_matrix_written_out_with_duplicates_and_hard_negatives(similarity):
    queries, candidates = draw(130, 8).requires_grad_(), draw(300, 8, seed=1).requires_grad_()
    hashes = torch.randint(0, 60, (300,), generator=torch.Generator().manual_seed(2))
    own, targets = torch.arange(130) % 50, torch.arange(130)
    mask = (hashes[None] == hashes[targets][:, None]) | (hashes[None] == own[:, None])
    q, c = (F.normalize(x, dim=1) if similarity == "cosine" else x for x in (queries, candidates))
    wanted = plain(q, c, targets, 1 / 0.05, mask=mask) / 130
    options = {"temperature": 0.05, "similarity": similarity}
    found = info_nce(queries, candidates, targets, excluded=same_text_mask(own, hashes, targets), **options)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for a, b in zip(grads(found, queries, candidates), grads(wanted, queries, candidates), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_kinds_of_text_join_and_a_row_that_repeats_another_in_any_kind_is_no_negative():
    a, b = torch.tensor([1, 2, 1]), torch.tensor([5, 6, 6])
    assert same_row_mask(a, b).mask_rows().tolist() == [[True, False, True], [False, True, True], [True, True, True]]
    assert torch.equal((same_row_mask(a) | same_row_mask(b)).mask_rows(), same_row_mask(a, b).mask_rows())


def test_no_tensor_as_large_as_the_matrix_is_made():
    queries, candidates = (draw(n, 4, dtype=torch.float32).requires_grad_() for n in (4096, 2048))
    targets = torch.arange(4096) % 2048
    for excluded in (None, same_text_mask(torch.arange(4096), torch.arange(2048), targets)):
        with Largest() as seen:
            info_nce(queries, candidates, targets, temperature=1.0, excluded=excluded).backward()
        assert seen.elements <= 4096 * 2048 / 8


@pytest.mark.parametrize("frozen", [0, 1])
def test_an_input_without_gradient_gets_none_and_no_gradient_is_made_where_none_is_asked_for(frozen):
    inputs = [draw(9, 4).requires_grad_(), draw(9, 4, seed=1).requires_grad_()]
    inputs[frozen].requires_grad_(False)
    targets = torch.arange(9)
    tiled_cross_entropy(*inputs, targets).backward()
    wanted = [x.detach().clone().requires_grad_() for x in inputs]
    plain(*wanted, targets, 1.0).backward()
    assert inputs[frozen].grad is None
    torch.testing.assert_close(inputs[1 - frozen].grad, wanted[1 - frozen].grad)
    with torch.no_grad():
        assert not tiled_cross_entropy(inputs[1 - frozen], inputs[frozen], targets).requires_grad


@pytest.mark.parametrize("kernel", ["tiles", "torch"])
@pytest.mark.parametrize("count", [1, 40, 600, 1000])
@pytest.mark.parametrize("biased", [False, True])
def test_the_head_in_chunks_has_the_value_and_gradient_of_all_logits(kernel, count, biased):
    states, weight = draw(count, 16).requires_grad_(), draw(90, 16, seed=1).requires_grad_()
    bias = draw(90, seed=2).requires_grad_() if biased else None
    labels = torch.arange(count) % 90
    inputs = [x for x in (states, weight, bias) if x is not None]
    wanted = token_cross_entropy(F.linear(states, weight, bias), labels)
    found = head_cross_entropy(states, weight, labels, bias=bias, kernel=kernel)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for a, b in zip(grads(found, *inputs), grads(wanted, *inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_products_in_half_precision_keep_gradients_of_the_masters_dtype_near_the_exact_ones():
    states, weight = (draw(n, 16, seed=n, dtype=torch.float32).requires_grad_() for n in (600, 90))
    labels = torch.arange(600) % 90
    found = grads(head_cross_entropy(states, weight, labels, compute=torch.bfloat16), states, weight)
    wanted = grads(head_cross_entropy(states, weight, labels), states, weight)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.float32 and apart(a, b) < 0.02


@pytest.mark.parametrize("tied", [False, True])
def test_a_models_token_loss_is_that_of_its_logits_in_one_chunk_and_in_several(tied):
    model = unified(double=True, tied=tied)
    rows = [row for row in mixed_rows(24) if row.answer]
    batch = collate(Generative(readout="mean").sequences(rows, form(model)))
    where = batch.labels.ge(0).nonzero().squeeze(1)
    for repeated in (where[:20], where.repeat(2)):
        labels = batch.labels[repeated]
        values, found = [], []
        for loss in (model.sum_cross_entropy, lambda rows, labels: token_cross_entropy(model.logits(rows), labels)):
            model.zero_grad(set_to_none=True)
            values.append(loss(model.hidden_states(batch)[repeated], labels))
            values[-1].backward()
            found.append(gradient(model))
        torch.testing.assert_close(*values, rtol=1e-12, atol=0)
        assert apart(*found) < 1e-12
    assert len(where) * 2 > 256 >= 20
