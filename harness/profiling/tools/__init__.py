"""Choose between Kineto, Nsight Systems and Nsight Compute, write their commands, and read their reports."""
