"""The device that PyTorch uses."""

import torch


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
