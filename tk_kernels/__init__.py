"""TTT kernels: one folder per operator (ttt_linear, ttt_mlp) and folders of shared code; see README.md."""

FORMS = ("dual", "primal")  # ttt_layer.md, "Three forms"
