"""What a user may ask of the battery. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.args import option
from headrace.errors import ConfigError

ENGINE_OPTIONS = (
    "tokenizer", "revision", "hf_token", "download_dir", "load_format", "hf_overrides", "dtype",
    "quantization", "max_model_len", "seed", "logits_processors", "block_size", "kv_cache_dtype",
    "backend", "device", "num_threads",
)  # fmt: skip
"""The options of the engine that hold for the whole battery. It varies the others itself."""
PREEMPTION_BLOCK_SIZE = 8
MIN_OUTPUT_LEN = 3 * PREEMPTION_BLOCK_SIZE
"""An answer must outgrow the block that is kept free for it, or nobody is ever preempted."""
MIN_INPUT_LEN = 40
"""Longer than the longest of the pieces that prompts are cut into."""


@dataclass
class VerifySettings:
    """How much is asked, and where the result goes.

    Raises:
        ConfigError: a value that cannot work.
    """

    num_prompts: int = option(
        3,
        "Random prompts. Each is asked three times: greedily, with a seed, and for the "
        "log-probabilities of the prompt itself.",
        group="Battery",
        kind="size",
    )
    input_len: int = option(
        64, "Tokens of the longest prompt; the others have down to half of it.",
        group="Battery", kind="size",
    )  # fmt: skip
    output_len: int = option(24, "Tokens of each answer.", group="Battery", kind="size")
    batch_size: int = option(
        64, "Requests that are computed together where a batch is verified.",
        group="Battery", kind="size",
    )  # fmt: skip
    json: str | None = option(
        None, "Write the result to this file.", group="Battery", short=("--output-json",)
    )

    def __post_init__(self) -> None:
        least = {
            "num_prompts": (1, ""),
            "input_len": (MIN_INPUT_LEN, ": shorter prompts would not come in pieces"),
            "output_len": (MIN_OUTPUT_LEN, ": shorter answers cannot be made to be preempted"),
            "batch_size": (3 * self.num_prompts + 1, ": each prompt is asked three times, and "
                                                     "somebody else must be in the batch"),
        }  # fmt: skip
        for name, (low, why) in least.items():
            if not low <= getattr(self, name) <= 1 << 20:
                raise ConfigError(f"{name} must be at least {low}{why}; got {getattr(self, name)}")
