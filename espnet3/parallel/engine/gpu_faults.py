"""What an exception means after which no CUDA call of the process can succeed, such as one of a GPU that fell out."""

from __future__ import annotations

import os

# of cudaGetErrorString, and NVML's of a GPU that is gone; those of one call alone, such as memory, are not among them
_WORDS = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "unspecified launch failure",
    "illegal memory access",
    "illegal instruction was encountered",
    "misaligned address",
    "device-side assert",
    "launch timed out and was terminated",
    "devices are busy or unavailable",
    "no CUDA-capable device is detected",
    "CUDA error: unknown error",
    "GPU is lost",
)


def spoilt_cuda(error: BaseException) -> str:
    """Return what such an exception of this process means, with the GPUs that it sees; "" for any other."""
    if not isinstance(error, RuntimeError):  # also of torch.AcceleratorError, cupy's and XLA's
        return ""
    try:
        said = str(error)
    except Exception:  # a user's class may raise anything
        return ""
    if not any(word in said for word in _WORDS):
        return ""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = "" if seen is None else f" (CUDA_VISIBLE_DEVICES={seen})"
    return (
        f"No CUDA call of this process{gpus} can succeed any more: nvidia-smi on its host, and lines with Xid in its "
        "kernel's log, say whether the GPU is at fault"
    )
