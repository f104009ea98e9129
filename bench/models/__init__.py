"""The language models.

`config` (sizes), `hugging_face` (config.json) and `case_model` (a case's model) import no torch.
`factory` builds a model from a seed; `checkpoint` loads one. `ttt`, `transformer` and `mamba` define the models.
A TTT model takes two parts: the inner loop (`operator`, or the project's kernels in `kernel_operator`) and the block
around it (`ttt.TTTBlock`, or fused kernels in `fused.FusedBlock`).
"""
