"""The commands of `ttt-bench`, apart from the command line so that its help starts at once."""
