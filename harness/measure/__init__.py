"""Measure one case in this process: clocks, stopping rule, checks, device state."""
