"""The page of a run: which figures and lines, what was found in words, and the scripts that draw."""
