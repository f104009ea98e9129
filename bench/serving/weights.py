"""Load a checkpoint's tensors into a model by name, in the form in which vLLM passes them."""

from collections.abc import Iterable

from torch import Tensor

from bench.models.base import CausalLM
from bench.models.config import CheckpointError


def load(model: CausalLM, given: Iterable[tuple[str, Tensor]]) -> set[str]:
    """Copy tensors into the model's weights of the same names; return the loaded names.

    A tied head can come with the embedding or instead of it. Raises CheckpointError for wrong names or shapes.
    """
    weights, loaded = model.weights(), set()
    for key, tensor in given:
        name = model.tied.get(key, key)
        if name not in weights:
            raise CheckpointError(f"{key}: not a weight of this model")
        if tensor.shape != weights[name].shape:
            raise CheckpointError(f"{key}: has shape {list(tensor.shape)}, expected {list(weights[name].shape)}")
        weights[name].copy_(tensor)
        loaded.add(name)
    if missing := weights.keys() - loaded:
        raise CheckpointError(f"{min(missing)}: missing in the checkpoint, and {len(missing) - 1} more")
    return loaded
