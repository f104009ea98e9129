"""Models, systems, suites and the command line `ttt-bench`."""
