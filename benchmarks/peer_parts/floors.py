"""The least time a job can take, from its bytes and operations and the machine's limits. Pure.

With W weight bytes, P weights per token in the layers, H in the output layer, B sequences, c tokens
of context, K bytes of keys and values per token, A operations of attention per pair of tokens:

    prefill of n tokens   max(W / reads, (2 P n + 2 H B + A pairs) / peak)
    a decode step         max((W + B c K) / reads, B (2 P + 2 H + A c) / peak)

A job is one prefill, which also gives the first tokens, and a decode step for each further one.
Reads is the measured speed of memory, peak that of multiply-adds (each two operations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peer_parts.works import Job

KV_BYTES = 2
"""Of a number in the cache: float16."""


@dataclass(frozen=True)
class ModelCost:
    """What one model costs.

    Attributes:
        weight_bytes: read by a step: all matrices as the file stores them, the embedding only if
            it is also the output layer.
        layer_weights: numbers in the matrices of all layers: multiply-adds per token.
        head_weights: numbers in the output layer.
        kv_bytes: keys and values of one token in all layers.
        attention_operations: of one query token with one token of context, in all layers.
    """

    weight_bytes: int
    layer_weights: int
    head_weights: int
    kv_bytes: int
    attention_operations: int

    @classmethod
    def from_shapes(
        cls, hf: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]
    ) -> ModelCost:
        """From a configuration, and the shape and stored bytes of every tensor of a checkpoint."""
        matrices = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
        embedding = "model.embed_tokens.weight"
        head = "lm_head.weight" if "lm_head.weight" in matrices else embedding
        layers = [name for name in matrices if name not in (embedding, head)]
        num_layers, num_heads = hf["num_hidden_layers"], hf["num_attention_heads"]
        head_dim = hf.get("head_dim") or hf["hidden_size"] // num_heads
        num_kv_heads = hf.get("num_key_value_heads") or num_heads
        return cls(
            weight_bytes=sum(sizes[name] for name in [*layers, head]),
            layer_weights=sum(matrices[name] for name in layers),
            head_weights=matrices[head],
            kv_bytes=2 * num_kv_heads * head_dim * KV_BYTES * num_layers,
            attention_operations=4 * num_heads * head_dim * num_layers,
        )


@dataclass(frozen=True)
class Machine:
    """Measured: bytes read per second, operations per second."""

    reads: float
    peak: float


def prefill_operations(job: Job, model: ModelCost) -> int:
    """Of all prompts; each token attends to itself and those before it."""
    tokens = job.num_prompts * job.input_len
    pairs = job.num_prompts * job.input_len * (job.input_len + 1) // 2
    products = 2 * (model.layer_weights * tokens + model.head_weights * job.num_prompts)
    return products + model.attention_operations * pairs


def floor_seconds(job: Job, model: ModelCost, machine: Machine) -> float:
    """Of the whole job; see the head of this file."""
    operations = prefill_operations(job, model)
    seconds = max(model.weight_bytes / machine.reads, operations / machine.peak)
    per_token = 2 * (model.layer_weights + model.head_weights)
    for context in range(job.input_len + 1, job.max_len):
        num_bytes = model.weight_bytes + job.num_prompts * context * model.kv_bytes
        work = job.num_prompts * (per_token + model.attention_operations * context)
        seconds += max(num_bytes / machine.reads, work / machine.peak)
    return seconds


def stream_seconds(job: Job, model: ModelCost, machine: Machine) -> float:
    """Reading the weights once for each output token, and nothing else."""
    return job.output_len * model.weight_bytes / machine.reads


def peak_seconds(job: Job, model: ModelCost, machine: Machine) -> float:
    """The operations of the prompts at the peak of the arithmetic, and nothing else."""
    return prefill_operations(job, model) / machine.peak


SHARES = {"floor": floor_seconds, "stream": stream_seconds, "peak": peak_seconds}


def machine_of(limits: Mapping[str, Any]) -> Machine:
    """From the JSON of measured limits: the fastest arithmetic on floats of any width.

    The peak of 8-bit integers is left out, also for stored formats whose kernels may use it: one
    yardstick for all, and with it a share above 1 is possible.
    """
    rates = [p["operations_per_second"] for p in limits["peaks"] if p["type"] != "int8"]
    return Machine(limits["read_bytes_per_second"], max(rates))
