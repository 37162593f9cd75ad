"""The gradient is that of the global batch for every number of processes, replicated or sharded (real gloo ranks)."""

from pathlib import Path

import pytest
import torch

from tests.laws import ranks_worker
from tests.laws.ranks_worker import CASES
from tests.models import apart
from tests.processes import ranks
from unified_lm.packing import Sequence, collate
from unified_lm.training.distributed import Ranks
from unified_lm.training.fsdp import Launch

WORLDS = (2, 4)


def launch(out: Path, processes: int) -> dict[str, torch.Tensor]:
    assert ranks(ranks_worker.main, processes, out) == [0] * processes
    return torch.load(out, weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, torch.Tensor]:
    return launch(tmp_path_factory.mktemp("ranks") / "one.pt", 1)


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> dict[str, torch.Tensor]:
    return launch(tmp_path_factory.mktemp("ranks") / "two.pt", 2)


@pytest.fixture(scope="module", params=WORLDS)
def many(request, tmp_path_factory, two) -> dict[str, torch.Tensor]:
    return two if request.param == 2 else launch(tmp_path_factory.mktemp("ranks") / "four.pt", request.param)


def test_every_case_has_the_gradient_of_one_process(alone, many):
    wrong = {
        f"{sharding}: {name}": apart(many[f"{sharding}: {name}"], alone[f"replicated: {name}"])
        for sharding in ("replicated", "fsdp")
        for name in CASES
    }
    assert {name: error for name, error in wrong.items() if not error <= 1e-6} == {}


def test_the_balance_of_embedding_and_generation_does_not_depend_on_the_number_of_ranks(alone, many):
    def ratio(found, sharding):
        return float(found[f"{sharding}: contrastive"].norm() / found[f"{sharding}: generative"].norm())

    for sharding in ("replicated", "fsdp"):
        assert ratio(many, sharding) == pytest.approx(ratio(alone, "replicated"), rel=1e-5)


def test_the_released_weighting_of_gritlm_can_be_emulated_and_is_another_gradient(alone):
    exact, emulated = alone["replicated: ulme"], alone["replicated: emulation of 4 GPUs"]
    assert apart(emulated, exact) > 0.1


def test_twenty_steps_of_replicated_sharded_and_single_training_end_in_the_same_weights(alone, two):
    reference = alone["replicated: 20 steps"]
    for sharding in ("replicated", "fsdp"):
        assert apart(two[f"{sharding}: 20 steps"], reference) <= 1e-6
    assert apart(two["fsdp: 20 steps"], two["replicated: 20 steps"]) <= 1e-6
    assert 1e-6 < apart(two["fsdp: bf16 reduction"], reference) <= 5e-3


def test_a_sharded_run_continued_from_its_checkpoint_ends_in_the_same_bits(two):
    assert torch.equal(two["fsdp: resumed at step 14"], two["fsdp: 20 steps"])


def test_a_method_that_does_not_declare_its_second_forward_is_refused_under_fsdp_and_no_rank_waits_for_ever(tmp_path):
    assert ranks(ranks_worker.undeclared_second_forward, 2, tmp_path) == [1, 1]
    assert "second_forward is False" in (tmp_path / "0.txt").read_text()


def test_chunks_are_dealt_whole_and_evened_only_in_lockstep():
    chunks = [collate([Sequence(tokens=(1, 2), row=i)], str(i)) for i in range(5)]
    parts = [Ranks(rank=r, size=2).distribute_chunks(chunks) for r in range(2)]
    assert [[c.index for c in part] for part in parts] == [["0", "2", "4"], ["1", "3"]]
    even = [Ranks(rank=r, size=2, lockstep=True).distribute_chunks(chunks) for r in range(2)]
    assert [len(part) for part in even] == [3, 3] and even[1][-1].sequences[0].role == "filler"
    with pytest.raises(ValueError, match="8 ranks but only 5 sequences"):
        Ranks(rank=0, size=8).distribute_chunks(chunks)
    late = [Ranks(rank=r, size=8).distribute_chunks(chunks, first=False) for r in range(8)]
    assert [part[0].sequences[0].role == "filler" for part in late] == [False] * 5 + [True] * 3


@pytest.mark.parametrize("size", [2, 3, 8])
def test_where_there_are_fewer_chunks_than_ranks_they_are_cut_until_every_rank_has_one(size):
    """All ranks cut alike, so that the ranks together hold each sequence once."""
    chunk = collate([Sequence(tokens=(1,) * (n + 1), row=n) for n in range(8)], "0")
    parts = [Ranks(rank=r, size=size).distribute_chunks([chunk]) for r in range(size)]
    held = [[sequence.row for one in part for sequence in one.sequences] for part in parts]
    assert all(held) and sorted(row for rows in held for row in rows) == list(range(8))


def test_launches_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="use replicated or fsdp"):
        Launch(processes=2, sharding="ddp")
    with pytest.raises(ValueError, match="are FSDP2's"):
        Launch(processes=2, reduce_dtype="bfloat16")
