"""The section of a run's page on its profiles: kernel times and counters."""
