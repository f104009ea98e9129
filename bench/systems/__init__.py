"""Adapters, a folder per engine or model; the modules in this folder are shared by them."""
