"""Types stored in a run's files (case, record, run, profile, catalogue), and functions that read and write them."""
