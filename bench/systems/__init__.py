"""Adapters by engine: what runs each system, as `bench.catalogue.systems` lists them, and what adapters share."""
