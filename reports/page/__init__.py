"""The HTML page of a run: figures, their lines, sentences about results, and the scripts that draw the figures."""
