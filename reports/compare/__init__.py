"""Compare two runs case by case."""
