"""The device that PyTorch uses."""

import torch


def device() -> str:
    """Return "cuda" if this process sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"
