"""The section on profiles."""
