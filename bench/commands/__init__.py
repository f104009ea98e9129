"""The commands of `ttt-bench`, imported only when they run, so that `--help` starts at once."""
