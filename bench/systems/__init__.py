"""Adapters: what runs each system. `bench.catalogue.systems` lists them."""
