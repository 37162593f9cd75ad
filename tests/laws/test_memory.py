"""Running out of memory costs a smaller chunk, never another objective."""

import pytest
import torch

from tests.methods import METHODS
from tests.models import apart, form, gradient, mixed_rows, unified
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate, halve_chunk, pack
from unified_lm.training.distributed import Ranks
from unified_lm.training.objective import (
    ChunkBudget,
    ChunkRandomness,
    ChunkTooLarge,
    RedoStep,
    TrainingModule,
    accumulate_gradients,
)


class Small(UnifiedLM):
    """A model on a device that holds `room` tokens with a graph, and `bare` tokens without one."""

    room: int
    bare: int
    forwards = 0

    def hidden_states(self, batch):
        self.forwards += 1
        if len(batch) > (self.room if torch.is_grad_enabled() else self.bare):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().hidden_states(batch)


def small(room: int, bare: int, slots: int) -> UnifiedLM:
    model = unified(slots=slots)
    model.__class__ = Small
    model.room, model.bare = room, bare
    return model


def run(model, method, *, lockstep=False, keep=1, rows=9, budget=None):
    budget = budget or ChunkBudget(150)
    chunks = pack(method.sequences(mixed_rows(rows), form(model)), budget.tokens)
    tries = 0
    while True:
        model.zero_grad(set_to_none=True)
        tries += 1
        try:
            terms = accumulate_gradients(
                TrainingModule(model, method, anchored=lockstep),
                chunks,
                ranks=Ranks(lockstep=lockstep),
                randomness=ChunkRandomness(seed=0, step=0),
                budget=budget,
                keep_chunks=keep,
            )
            return terms, gradient(model), chunks, tries
        except RedoStep:
            continue


@pytest.mark.parametrize(("room", "bare"), [(60, 60), (60, 1000), (90, 120)])
@pytest.mark.parametrize("name", ["ulme", "contrastive", "generative"])
def test_a_step_that_ran_out_of_memory_is_redone_with_smaller_chunks_and_the_same_gradient(name, room, bare):
    method = METHODS[name]
    terms, whole, large, once = run(unified(slots=method.slots), method)
    found, grad, cut, tries = run(small(room, bare, method.slots), method)
    assert once == 1 and len(cut) > len(large) and max(map(len, cut)) <= room
    assert tries == (1 if method.roles else 2)  # without vectors there is no first pass, in which to cut at once
    assert found == pytest.approx(terms, rel=1e-5)
    assert apart(grad, whole) <= 1e-6


@pytest.mark.parametrize("rows", [12, 96])
@pytest.mark.parametrize("name", ["ulme", "generative"])
def test_all_chunks_that_are_as_large_are_cut_at_once_and_the_next_step_needs_no_cut(name, rows):
    """Of 96 rows make 56 chunks, of which many are too large: the step is redone once at most, not once a chunk."""
    method = METHODS[name]
    model, budget = small(75, 1000, method.slots), ChunkBudget(150)
    _, _, chunks, tries = run(model, method, rows=rows, budget=budget)
    assert tries <= 2
    assert budget.tokens <= 75 and max(map(len, chunks)) <= 75
    assert model.forwards <= 3 * len(chunks)
    model.forwards = 0
    assert run(model, method, rows=rows, budget=budget)[3] == 1
    assert model.forwards <= 2 * len(chunks)


def test_in_lockstep_it_stops_and_names_the_chunk_size_to_try():
    with pytest.raises(ChunkTooLarge, match=r"runtime\.chunk_tokens=\d+"):
        run(small(60, 60, 4), METHODS["ulme"], lockstep=True)


def test_one_sequence_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"one sequence of 9 tokens does not fit .* lengths"):
        halve_chunk(collate([Sequence(tokens=(1,) * 9)]))


def test_halves_hold_the_same_sequences_and_have_randomness_of_their_own():
    chunk = collate([Sequence(tokens=(1,) * n, row=n) for n in (5, 1, 9, 2)], "7")
    first, second = halve_chunk(chunk)
    assert first.sequences + second.sequences == chunk.sequences
    assert (first.index, second.index) == ("7.0", "7.1")
