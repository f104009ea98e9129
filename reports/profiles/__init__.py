"""The section on profiles: what bounds each profiled case."""
