"""Adapters, a folder per engine or model: they run the systems of `bench.catalogue`.

The modules directly in this package are shared by the adapters.
"""
