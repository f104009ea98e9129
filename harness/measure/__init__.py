"""Measure one case in this process: timers, stopping rule, output checks, GPU state."""
