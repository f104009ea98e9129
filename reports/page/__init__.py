"""The page of a run: its figures, lines and findings, and the scripts that draw them."""
