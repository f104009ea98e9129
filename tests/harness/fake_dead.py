"""An adapter that cannot even be imported."""

raise ImportError("no module named 'cuda_of_tomorrow'")
