"""Measure one case in this process: timers, stopping rule, output checks, and the state of the GPU."""
