"""Variants of the TTT layer from other publications, in naive form; only tests use them."""
