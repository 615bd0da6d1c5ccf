"""The executor that runs the model in the engine core's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.config.engine import EngineConfig
from headrace.layers.loader import Loader
from headrace.logger import make_logger
from headrace.logits_processor import load_logits_processors
from headrace.messages.requests import Vocabulary
from headrace.messages.startup import EngineReady
from headrace.messages.step import ModelRunnerOutput, SchedulerOutput
from headrace.models.registry import ModelRegistry
from headrace.ops.dispatch import make_ops
from headrace.weights.reader import open_weights
from headrace.worker.executor import OnStage
from headrace.worker.grammar_masks import Grammars
from headrace.worker.input_batch import InputBatch
from headrace.worker.memory import available_memory, block_bytes, memory_table, plan_kv_cache
from headrace.worker.model_runner import ModelRunner
from headrace.worker.rpc import MODEL_FUNCTIONS, Function, call_entry, model_layout
from headrace.worker.sampler import Sampler

logger = make_logger(__name__)

WORKER_METHODS: dict[str, Function] = {
    "model_layout": lambda worker: model_layout(worker.model),
    "num_threads": lambda worker: worker.num_threads,
    "sizes": lambda worker: msgspec.structs.asdict(worker.ready),
}
"""name -> method of the worker, for `collective_rpc`."""
WEIGHTS_FROM, WEIGHTS_TO = 0.1, 0.9
"""Between which shares of the start the weights are loaded."""


class UniProcExecutor:
    """Loads a model and runs steps in the caller's thread. Implements Executor.

    Raises:
        ConfigError: a setting that cannot work with this model or machine.
        ModelError: weights that cannot be read or do not fit.
    """

    def __init__(self, config: EngineConfig, on_stage: OnStage) -> None:
        model_config, scheduler = config.model, config.scheduler
        ModelRegistry.check(model_config.model_type)
        processors = [kind(config) for kind in load_logits_processors(config.logits_processors)]
        on_stage("loading weights", WEIGHTS_FROM)
        device = config.device
        ops = make_ops(device.backend, device.device, device.num_threads, device.cpu_affinity)

        def tell_progress(share: float) -> None:
            # A weight is prepared for the kernels as soon as it is asked for: both go on at once.
            fraction = WEIGHTS_FROM + share * (WEIGHTS_TO - WEIGHTS_FROM)
            on_stage("loading and repacking weights", fraction)

        with open_weights(model_config, tell_progress) as weights:
            model = ModelRegistry.make_model(
                model_config.model_type,
                model_config.hf_config,
                Loader(weights, ops, quantization=model_config.quantization),
            )
            weights.check_all_used()
        on_stage("making the KV cache", WEIGHTS_TO)
        heads = model.heads
        plan = plan_kv_cache(
            config,
            block_bytes(
                config.cache,
                num_layers=model.num_layers,
                num_kv_heads=heads.num_kv_heads,
                head_dim=heads.head_dim,
            ),
            available_memory(),
        )
        self.model = model
        self._ops = ops
        self.num_threads = ops.num_threads
        self._caches = caches = ops.make_kv_caches(
            model.num_layers, plan.num_blocks, plan.block_size, heads, config.cache.kv_cache_dtype
        )
        executable = ops.compile(
            lambda: model.forward(caches),
            model.compute_logits,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            max_num_tokens=scheduler.max_num_batched_tokens,
        )
        self._grammars = Grammars(model.vocab_size, ops.num_threads)
        batch = InputBatch(
            max_num_seqs=scheduler.max_num_seqs,
            max_model_len=plan.max_model_len,
            max_num_tokens=scheduler.max_num_batched_tokens,
            block_size=plan.block_size,
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            logits_processors=processors,
            grammars=self._grammars,
        )
        self._runner = ModelRunner(executable, batch, Sampler(model.vocab_size, ops.num_threads))
        self.ready = EngineReady(
            max_model_len=plan.max_model_len,
            num_blocks=plan.num_blocks,
            block_size=plan.block_size,
            kv_cache_bytes=plan.num_bytes,
            weight_bytes=ops.weight_bytes,
            isa=ops.name,
        )
        table = memory_table(plan, weight_bytes=ops.weight_bytes, isa=ops.name,
                             num_threads=ops.num_threads)  # fmt: skip
        logger.info("memory and limits:\n%s", table)

    def execute(self, order: SchedulerOutput) -> ModelRunnerOutput:
        """See Executor."""
        return self._runner.execute(order)

    def release_kv_cache(self) -> None:
        """See Executor."""
        self._ops.release_kv_caches(self._caches)

    def call_worker(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See Executor."""
        return call_entry(WORKER_METHODS, self, method, args, kwargs)

    def call_model(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """See Executor."""
        return call_entry(MODEL_FUNCTIONS, self.model, function, args, kwargs)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """See Executor."""
        self._grammars.set_vocabulary(vocabulary)

    def prepare_grammar(self, grammar: str) -> None:
        """See Executor."""
        self._grammars.prepare(grammar)

    def shutdown(self) -> None:
        """See Executor. Memory goes with the object."""
        self._grammars.shutdown()
