"""Runs jobs of peers.py on OpenVINO GenAI: its pipeline with continuous batching and paged KV."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from runner_protocol import Limits, serve

CACHE_GB = 4
MAX_BATCHED_TOKENS = 4096


class OpenvinoEngine:
    """The model compiled for the processor; GGUF files are read directly."""

    def __init__(self, model: str, threads: int, limits: Limits, settings: dict[str, Any]) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        scheduler.max_num_seqs = limits.max_seqs
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads, **settings}
        self._pipe = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.facts = {"version": genai.__version__}

    def generate(self, prompts: list[list[int]], output_len: int) -> list[int]:
        config = genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipe.generate(inputs, [config] * len(inputs))
        return [len(result.m_generation_ids[0]) for result in results]


if __name__ == "__main__":
    serve(OpenvinoEngine)
