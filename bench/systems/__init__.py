"""Adapters of systems: a folder per engine or model, and the modules that these folders share."""
