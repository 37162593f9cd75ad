"""Work that overlaps with the device: items are prepared in a background thread, batches in pinned memory."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from unified_lm.device import use_device
from unified_lm.packing import PackedBatch

T = TypeVar("T")
END = object()


def pin_batch(batch: PackedBatch) -> PackedBatch:
    """Copy a batch to page-locked (pinned) memory, from which a copy to the GPU overlaps with its work."""
    layout = replace(batch.layout, cu_seqlens=batch.layout.cu_seqlens.pin_memory())
    moved = {name: getattr(batch, name).pin_memory() for name in ("tokens", "positions", "labels")}
    return replace(batch, layout=layout, **moved)


@contextmanager
def prefetch(items: Iterator[T], ahead: int, device: torch.device) -> Iterator[Iterator[T]]:
    """Prepare items in a background thread, at most `ahead` in advance; its errors are raised in the consumer.

    `device`: where the items are used; it is the thread's current device, so that memory is pinned for it.
    """
    ready: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def make() -> None:
        try:
            with use_device(device):
                for item in items:
                    if not put(item):
                        return
            put(END)
        except Exception as error:  # raised again by the consumer
            put(error)

    def take() -> Iterator[T]:
        while (item := ready.get()) is not END:
            if isinstance(item, Exception):
                put(END)
                raise item
            yield item
        put(END)  # for the other devices

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    try:
        yield take()
    finally:
        stop.set()
        thread.join()
