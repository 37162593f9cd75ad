"""What a chunk size costs: peak memory and tokens a second of a training step on SmolLM2, a process for each size.

`python -m experiments.bench.chunks [TOKENS ...]` prints a Markdown table of ratios to the largest size. The gradient is
the same for all of them (that is a law, not a measurement); dropout is off in SmolLM2.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

SIZES = (256, 512, 1024, 4096)
STEPS = 3
ROWS = 24


def measure_chunk_size(chunk_tokens: int) -> dict[str, float]:
    """Median tokens a second and peak resident memory of ULME steps over 24 rows, cut at `chunk_tokens`."""
    import torch

    from unified_lm.attention import Plan
    from unified_lm.backbones import SmolLM2
    from unified_lm.data.packaged.source import PackagedText
    from unified_lm.methods.ulme import Ulme
    from unified_lm.model import UnifiedLM
    from unified_lm.packing import pack
    from unified_lm.prompts.format import Format
    from unified_lm.prompts.template import Template
    from unified_lm.training.distributed import Ranks
    from unified_lm.training.objective import ChunkRandomness, TrainingModule, accumulate_gradients

    loaded = SmolLM2(dtype="float32").load()
    model = UnifiedLM(loaded.model, loaded.tokenizer, slots=4, autocast=torch.bfloat16).train()
    method = Ulme(
        slots=4,
        temperature=0.05,
        semantic_weight=1.0,
        generative_weight=1.0,
        predictive_weight=0.3,
        target="mean",
        stop_gradient=True,
    )
    template = Template(name="plain", query="{text}", document="{text}", answer="\n{text}{eos}")
    form = Format(
        template=template,
        tokenizer=loaded.tokenizer,
        plan=Plan(embed="causal", generate="causal"),
        slots=4,
        document_slots=1,
        query_length=64,
        document_length=128,
        answer_length=64,
    )
    rows = list(PackagedText(kind="triples", split="train").rows())[:ROWS]
    chunks = pack(method.sequences(rows, form), chunk_tokens)
    reader, ranks = TrainingModule(model, method), Ranks()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    speeds = []
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        accumulate_gradients(reader, list(chunks), ranks=ranks, randomness=ChunkRandomness(seed=0, step=step))
        speeds.append(sum(map(len, chunks)) / (time.perf_counter() - start))
    return {
        "chunk_tokens": chunk_tokens,
        "chunks": len(chunks),
        "tokens": sum(map(len, chunks)),
        "tokens_per_s": statistics.median(speeds),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "loaded_gib": base / 2**20,
    }


def render_chunk_table(found: list[dict[str, float]]) -> str:
    """Ratios to the last (largest) size; memory above the loaded model is what a chunk decides."""
    last = found[-1]
    lines = [
        "| chunk_tokens | chunks | tokens/s (ratio) | peak memory (ratio) | above the loaded model (ratio) |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        above = (one["peak_gib"] - one["loaded_gib"]) / (last["peak_gib"] - last["loaded_gib"])
        lines.append(
            f"| {one['chunk_tokens']} | {one['chunks']} | {one['tokens_per_s']:.0f} "
            f"({one['tokens_per_s'] / last['tokens_per_s']:.2f}) | {one['peak_gib']:.2f} GiB "
            f"({one['peak_gib'] / last['peak_gib']:.2f}) | {above:.2f} |"
        )
    return "\n".join(lines)


def main(sizes: list[int]) -> None:
    found = []
    for size in sizes:
        command = [sys.executable, "-m", "experiments.bench.chunks", "--one", str(size)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print(
        f"{int(found[0]['tokens'])} tokens a step, {ROWS} rows, median of {STEPS} steps\n\n{render_chunk_table(found)}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure_chunk_size(int(sys.argv[2]))))
    else:
        main([int(size) for size in sys.argv[1:]] or list(SIZES))
