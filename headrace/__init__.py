"""headrace: an engine for running language models on the machines people already have.

The public names, listed once and imported on use, so that `import headrace` costs nothing.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
__version_tuple__ = (0, 1, 0)

_HOMES = {
    "LLM": "headrace.llm",
    "AsyncLLM": "headrace.engine.async_llm",
    "LLMEngine": "headrace.engine.llm_engine",
    "EngineArgs": "headrace.config.args",
    "AsyncEngineArgs": "headrace.config.args",
    "EngineClient": "headrace.engine.client",
    "SamplingParams": "headrace.sampling_params",
    "BeamSearchParams": "headrace.sampling_params",
    "StructuredOutputsParams": "headrace.structured_params",
    "RepetitionDetectionParams": "headrace.sampling_params",
    "RequestOutputKind": "headrace.sampling_params",
    "LoRARequest": "headrace.lora_request",
    "PromptType": "headrace.inputs",
    "StreamingInput": "headrace.inputs",
    "TextPrompt": "headrace.inputs",
    "TokensPrompt": "headrace.inputs",
    "RequestOutput": "headrace.outputs",
    "CompletionOutput": "headrace.outputs",
    "Logprob": "headrace.logprobs",
    "FlatLogprobs": "headrace.logprobs",
    "LogitsProcessor": "headrace.logits_processor",
    "RequestMetrics": "headrace.outputs",
    "BeamSearchOutput": "headrace.beam_search",
    "BeamSearchSequence": "headrace.beam_search",
    "Metric": "headrace.metrics.records",
    "Counter": "headrace.metrics.records",
    "Gauge": "headrace.metrics.records",
    "Histogram": "headrace.metrics.records",
    "Vector": "headrace.metrics.records",
    "ModelRegistry": "headrace.models.registry",
    "HeadraceError": "headrace.errors",
    "ConfigError": "headrace.errors",
    "ModelError": "headrace.errors",
    "ValidationError": "headrace.errors",
    "UnsupportedError": "headrace.errors",
    "AdmissionError": "headrace.errors",
    "QueueTimeoutError": "headrace.errors",
    "ProfilerAlreadyActiveError": "headrace.errors",
    "EngineDeadError": "headrace.errors",
    "EngineGenerateError": "headrace.errors",
    "EngineStartError": "headrace.errors",
}
_ALIASES = {"AsyncLLMEngine": "AsyncLLM"}

__all__ = ["__version__", "__version_tuple__", *_HOMES, *_ALIASES]


def __getattr__(name: str) -> object:
    target = _ALIASES.get(name, name)
    if target not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[target]), target)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
