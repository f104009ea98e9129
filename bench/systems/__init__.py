"""Adapters, in a folder per engine or model: each runs and checks systems that `bench.catalogue.systems` lists.

The modules directly in this package are shared by the adapters.
"""
