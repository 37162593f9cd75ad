"""The doctor runs what it reports, and knows a way out of each way that flash-attn fails."""

import dataclasses

import pytest
import torch

from experiments import doctor
from experiments.runs.flash_attn_remedy import TorchBuild, suggest_flash_remedy
from unified_lm.attention import kernels

HOPPER = TorchBuild(torch="2.13.0+cu130", cuda="13.0", abi=True, capability=(9, 0))


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("ImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c10", "another torch"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "another CUDA than torch's 13.0"),
        ("RuntimeError: CUDA error: no kernel image is available", "TORCH_CUDA_ARCH_LIST=9.0"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "--no-build-isolation"),
    ],
)
def test_each_failure_of_flash_attn_has_its_remedy(said, found):
    assert found in suggest_flash_remedy(said, HOPPER)
    assert "kernel=sdpa" in suggest_flash_remedy(said, dataclasses.replace(HOPPER, capability=(7, 5)))
    assert HOPPER.wheel_name == "+cu13torch2.13cxx11abiTRUE"


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU is told")
def test_every_kernel_of_this_machine_is_executed_and_agrees_with_the_oracle():
    found = {finding.what: finding for finding in doctor.check_kernels()}
    assert set(found) == {f"kernel {name}" for name in kernels.KERNELS} and all(f.is_good for f in found.values())
    assert "mixed on cpu" in found["kernel sdpa"].result and "not for cpu" in found["kernel varlen"].result


def test_a_kernel_that_is_wrong_is_found(monkeypatch):
    def forgetful(q, k, v, layout, *, scale):
        return kernels.sdpa_kernel(q, k, v, layout, scale=2.0)

    broken = dataclasses.replace(kernels.KERNELS["sdpa"], run=forgetful)
    monkeypatch.setitem(kernels.KERNELS, "sdpa", broken)
    assert [f.what for f in doctor.check_kernels() if not f.is_good] == ["kernel sdpa"]


def test_a_process_that_dies_is_reported_and_not_fatal():
    died = doctor.run_in_subprocess("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert not died.succeeded and "-11" in died.output
