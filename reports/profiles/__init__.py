"""The section on profiles of a run's page."""
