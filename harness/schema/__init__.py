"""Types stored in a run's files, and functions that read and write them."""
