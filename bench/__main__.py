"""`python -m bench` is `ttt-bench`."""

from bench.cli import main

main()
