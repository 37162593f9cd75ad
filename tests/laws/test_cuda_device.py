"""On CUDA nothing is read before it is there: a fake device defers copies, and knows each thread's current device."""

import pytest
import torch

from tests.laws import cuda_worker
from tests.processes import Talking


@pytest.mark.parametrize("device", [0, 3])
def test_the_vectors_of_every_pack_are_complete_when_they_are_read_on_every_gpu(device):
    """A thread begins with GPU 0 as its device: an event recorded there says nothing about a copy on GPU 3."""
    process = Talking(cuda_worker.encode_on, device)
    (said,) = process
    assert process.wait() == 0
    for budget, wanted, found in zip(said["budgets"], said["wanted"], said["found"], strict=True):
        closeness = torch.cosine_similarity(torch.tensor(found), torch.tensor(wanted))
        assert closeness.min() >= 0.999, f"packs of {budget} tokens"
