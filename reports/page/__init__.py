"""The HTML page of a run: its figures with their lines and findings, and the scripts that draw the figures."""
