"""A static web site of many runs."""
