"""A static site of many runs."""
