"""Measure cases in worker processes and store records; README.md describes the method.

No module here imports TTT code, and none imports torch, pandas or rich before a function needs it.
"""
