"""Two runs beside each other: pairs of cases, what differs, verdicts."""
