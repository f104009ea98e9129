"""Files of a run and the types they hold: case, record, run, profile, catalogue."""
