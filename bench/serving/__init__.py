"""TTT models in vLLM: a plug-in, loaded by the entry point `vllm.general_plugins`. See README.md."""


def register() -> None:
    """Register TTT checkpoints in vLLM, which calls this in each of its processes; repeated calls are safe.

    In a release of vLLM that was not tried, opening a TTT checkpoint raises ValueError.
    """
    import vllm
    from transformers.models.auto.configuration_auto import AutoConfig

    from bench.serving.hugging_face import HuggingFaceConfig, refusing
    from bench.serving.refusals import untried

    if why := untried(vllm.__version__):
        AutoConfig.register(HuggingFaceConfig.model_type, refusing(why), exist_ok=True)
        return
    AutoConfig.register(HuggingFaceConfig.model_type, HuggingFaceConfig, exist_ok=True)
    from bench.serving.settings import register_model

    register_model()
