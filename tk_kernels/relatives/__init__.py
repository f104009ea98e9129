"""Relatives of the TTT layer from other texts, each in its naive form; nothing else in the repository uses them."""
