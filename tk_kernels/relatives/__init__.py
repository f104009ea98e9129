"""Relatives of the TTT layer from other texts, in naive form; only tests use them."""
