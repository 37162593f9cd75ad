"""What is measured on a GPU, in its order. The peak of the products comes first: utilization is given against it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import torch

from experiments.bench.cuda import encoding, parts, training
from experiments.bench.cuda.shapes import SHAPES, Measured, Shape, decoder
from experiments.bench.material import CAUSAL
from experiments.config.errors import UsageError
from experiments.config.paths import display_path, outputs_folder
from experiments.runs.provenance import describe_hardware, package_versions, read_commit
from unified_lm.files import write_json, write_text
from unified_lm.selfcheck import check_attention


def main(repeats: int) -> int:
    if not torch.cuda.is_available():
        raise UsageError("device=cuda needs a GPU and torch sees none (make doctor says why); use device=cpu")
    device = torch.device("cuda")
    found = []
    for line in plan(device, torch.bfloat16, SHAPES, repeats):
        found.append(line)
        print(told(line), flush=True)
    facts = {
        "hardware": asdict(describe_hardware()),
        "versions": package_versions(),
        "git": None if (commit := read_commit()) is None else asdict(commit),
        "repeats": repeats,
    }
    place = outputs_folder() / "bench" / "cuda"
    write_json(place.with_suffix(".json"), facts | {"lines": [asdict(line) for line in found]})
    write_text(place.with_suffix(".md"), "\n".join(f"- {told(line)}" for line in found) + "\n")
    print(f"written: {display_path(place)}.json, .md", file=sys.stderr)
    return 0


def told(line: Measured) -> str:
    figures = [f"{line.what}: {line.seconds * 1e3:.2f} ms"]
    figures += [f"{line.tokens_per_s / 1e3:.1f}k tokens/s"] if line.tokens_per_s else []
    figures += [f"MFU {line.mfu:.1%}"] if line.mfu else []
    figures += [f"{line.of_measured_peak:.1%} of the measured peak"] if line.of_measured_peak else []
    figures += [f"{line.peak_gib:.1f} GiB"] if line.peak_gib else []
    figures += [f"goal {line.goal:.0%}"] if line.goal else []
    figures += [line.parity] if line.parity else []
    return ", ".join(figures)


def plan(device: torch.device, dtype: torch.dtype, shapes: Sequence[Shape], repeats: int) -> Iterator[Measured]:
    """Everything, the smallest decoder first; adapters come last, since they stay in a decoder."""
    for shape in shapes:
        peak, taken = parts.product_peak(shape, device, dtype, repeats)
        yield Measured(what=f"{shape.name} one product, {peak / 1e12:.1f} TFLOP/s", seconds=taken)
        model = decoder(shape, device, dtype)
        check_attention(model, CAUSAL)
        yield from encoding.lines(shape, model, peak, repeats)
        yield from training.lines(shape, model, peak, repeats)
        del model
    yield from parts.kernels(shapes[0], device, dtype, repeats)
    yield from parts.losses(shapes[0], device, dtype, repeats)
