"""Measure cases in worker processes and store their records. harness/README.md lists the modules.

Nothing here knows TTT, or imports torch, pandas or rich before it needs them.
"""
