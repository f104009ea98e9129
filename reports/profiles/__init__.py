"""The section of a run's page that shows the run's profiles (kernel times and hardware counters)."""
