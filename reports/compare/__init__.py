"""Compare two runs case by case: read records, decide what changed, show the result."""
