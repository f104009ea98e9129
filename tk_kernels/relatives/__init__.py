"""Relatives of the TTT layer from other texts, each in its naive form; no other module uses them, only tests."""
