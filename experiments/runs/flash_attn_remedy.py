"""What an import or a launch of flash-attn says when it fails, and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """What a wheel of flash-attn must fit: torch's version, its CUDA, its C++ ABI, and the GPU's compute capability."""

    torch: str
    cuda: str | None
    abi: bool
    capability: tuple[int, int]

    @property
    def wheel_name(self) -> str:
        """How the wheel that fits is named, as the releases of flash-attn spell it."""
        series = ".".join(self.torch.split("+")[0].split(".")[:2])
        major = (self.cuda or "").split(".")[0]
        return f"+cu{major}torch{series}cxx11abi{str(self.abi).upper()}"


def suggest_flash_remedy(said: str, machine: TorchBuild) -> str:
    """The way out of a failure of flash-attn, by what it said; kernel=auto always works without it."""
    if machine.capability < (8, 0):
        number = ".".join(map(str, machine.capability))
        return f"this GPU has compute capability {number} and flash-attn needs 8.0: use kernel=sdpa, autocast=float16"
    if "undefined symbol" in said:
        return (
            "it was built against another torch: pip uninstall flash-attn, then install the wheel "
            f"*{machine.wheel_name}*"
        )
    if "cannot open shared object" in said:
        return f"it was built for another CUDA than torch's {machine.cuda}: install the wheel *{machine.wheel_name}*"
    if "no kernel image" in said:
        number = ".".join(map(str, machine.capability))
        return f"it has no code for this GPU: build it with TORCH_CUDA_ARCH_LIST={number}, or use kernel=varlen"
    if "No module named" in said:
        return (
            "kernel=auto uses torch's own varlen kernel instead; to add flash-attn install the wheel "
            f"*{machine.wheel_name}*; where there is none, build it (needs nvcc): "
            "MAX_JOBS=4 pip install flash-attn --no-build-isolation"
        )
    return "use kernel=varlen, and report what it said"
