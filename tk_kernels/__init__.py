"""TTT kernels: a folder an operator (ttt_linear, ttt_mlp), and rooms for what they share. README.md explains them."""

FORMS = ("dual", "primal")  # of one function (ttt_layer.md, "Three forms")
