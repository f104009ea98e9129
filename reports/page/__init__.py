"""The HTML page of a run: figures, lines, findings, and the scripts that draw them."""
