"""Kineto, Nsight Systems and Nsight Compute: their choice, their commands and readers of their reports."""
