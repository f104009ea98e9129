"""Adapters of the benchmarked systems, a folder per engine or model, and shared modules."""
