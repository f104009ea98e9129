"""Choose between Kineto, Nsight Systems and Nsight Compute; write commands, read reports."""
