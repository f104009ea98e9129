"""Adapters of the benchmarked systems, one folder per engine or model, and the modules that these folders share."""
