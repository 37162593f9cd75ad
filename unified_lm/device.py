"""Work on a GPU without waiting for it: the current device of a thread, and copies between host and device.

Lengths, owners and places of tokens are known on the host. Index tensors are made there and copied asynchronously, so
that the host runs ahead of the GPU. A copy from ordinary memory is asynchronous too: the driver keeps its own copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def use_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current device inside the block; nothing for a CPU.

    The current device belongs to a host thread and is GPU 0 in a new one, whatever the main thread's is. Events,
    pinned memory and kernels of other libraries follow it.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def tensor_on(device: torch.device, values: Sequence[Any], dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of host values on a device; the host does not wait for the copy."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def copy_to_host(tensor: Tensor) -> tuple[Tensor, Callable[[], None]]:
    """Start copying a tensor to the host; call the second value to wait until the copy is complete."""
    if not tensor.is_cuda:
        return tensor, lambda: None
    with use_device(tensor.device):  # the event and the pinned memory are this GPU's, whatever the thread's device is
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensor.device))
    return host, event.synchronize
