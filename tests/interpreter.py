"""Run tests of Triton kernels on the GPU, or without one in Triton's interpreter (see conftest.py)."""

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
