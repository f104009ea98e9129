"""TTT kernels: a folder an operator (ttt_linear, ttt_mlp), and rooms for what they share. README.md explains them."""
