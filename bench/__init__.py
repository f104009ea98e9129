"""What is measured: the models, the systems, the suites and the command line."""
