"""Compare two runs case by case: read their records, decide what changed, and show the result."""
