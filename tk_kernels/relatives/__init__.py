"""Variants and special cases of the TTT layer, from publications; only tests use them."""
