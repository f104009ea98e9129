"""What runs around the operators in one pass over memory each: short convolutions, norms, gates."""
