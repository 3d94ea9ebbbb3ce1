"""CUDA backend: cupy arrays, NVRTC kernels, cuBLAS through nvmath, stream capture."""

from __future__ import annotations

from trainer.device.base import Device


def why_unavailable() -> str | None:
    """None when a GPU can be used, else the reason in one line with what to do."""
    try:
        import cupy
    except ImportError:
        return "cupy is not installed; pip install 'foxhunt[gpu]' (CUDA 13) or 'foxhunt[gpu-cu12]'"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable NVIDIA driver ({error}); install one, or use --device cpu"
    return None if count else "no NVIDIA GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"


class CudaDevice(Device):
    name = "cuda"
