"""Both operators in PyTorch: the definition, a fast form, and the parts around f.

They are `naive`, `learner` and `layer`.
"""
