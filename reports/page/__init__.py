"""A run's HTML page: figures, their lines, sentences on results, and drawing scripts."""
