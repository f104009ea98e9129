"""TTT models in vLLM: a plug-in with the entry point `vllm.general_plugins`. See README.md."""


def register() -> None:
    """Register TTT models in vLLM. vLLM calls this in each process; repeated calls are harmless.

    With a vLLM release outside `refusals.RELEASES`, opening a TTT checkpoint raises ValueError.
    """
    from transformers.models.auto.configuration_auto import AutoConfig

    from bench.serving.hugging_face import HuggingFaceConfig, unusable_config
    from bench.serving.refusals import RELEASES
    from bench.systems.needs import unsupported_release

    if why := unsupported_release("vllm", *RELEASES):
        AutoConfig.register(HuggingFaceConfig.model_type, unusable_config(why), exist_ok=True)
        return
    AutoConfig.register(HuggingFaceConfig.model_type, HuggingFaceConfig, exist_ok=True)
    from bench.serving.settings import register_model

    register_model()
