"""PyTorch's Kineto, Nsight Systems and Nsight Compute: which to use, and readers of what they write."""
