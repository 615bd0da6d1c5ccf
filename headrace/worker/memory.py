"""How many KV blocks fit: pure sums over sizes, and one look at how much memory is free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config.engine import CacheConfig, EngineConfig
from headrace.errors import ConfigError
from headrace.logger import make_logger

logger = make_logger(__name__)

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """The size of the KV cache and why it is that."""

    num_blocks: int
    block_size: int
    block_bytes: int
    max_model_len: int
    reason: str

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks of all layers."""
        return self.num_blocks * self.block_bytes

    @property
    def max_concurrency(self) -> float:
        """How many requests of full length fit at once."""
        return self.num_blocks * self.block_size / self.max_model_len


def block_bytes(cache: CacheConfig, *, num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    per_token = 2 * num_layers * num_kv_heads * head_dim * DTYPE_BYTES[cache.kv_cache_dtype]
    return cache.block_size * per_token


def plan_kv_cache(config: EngineConfig, bytes_per_block: int, free_bytes: int) -> KVCachePlan:
    """Decide the number of blocks, and the context length where it is `auto`.

    Never more blocks than max_num_seqs requests of full length could use.

    Args:
        free_bytes: memory free after loading the weights.

    Raises:
        ConfigError: one request of max_model_len does not fit.
    """
    cache, block_size = config.cache, config.cache.block_size
    max_model_len = config.model.max_model_len
    if cache.num_blocks_override is not None:
        num_blocks, reason = cache.num_blocks_override, "as --num-gpu-blocks-override says"
    elif cache.kv_cache_memory_bytes is not None:
        num_blocks = cache.kv_cache_memory_bytes // bytes_per_block
        reason = "as --kv-cache-memory-bytes says"
    else:
        num_blocks = int(free_bytes * cache.memory_utilization) // bytes_per_block
        reason = f"{cache.memory_utilization:.0%} of {free_bytes / GIB:.1f} GiB free memory"
    useful = -(-max_model_len // block_size) * config.scheduler.max_num_seqs
    if cache.num_blocks_override is None and num_blocks > useful:
        num_blocks = useful
        reason = f"all that {config.scheduler.max_num_seqs} sequences of full length can use"
    if num_blocks * block_size < max_model_len:
        if not config.model.max_model_len_auto or num_blocks < 1:
            needed = -(-max_model_len // block_size) * bytes_per_block
            raise ConfigError(
                f"the KV cache ({reason}) holds {num_blocks * block_size} tokens, but one request "
                f"of --max-model-len {max_model_len} needs {needed / MIB:.0f} MiB: lower "
                "--max-model-len (or set it to `auto`), or raise --kv-cache-memory-bytes"
            )
        max_model_len = num_blocks * block_size
    return KVCachePlan(num_blocks, block_size, bytes_per_block, max_model_len, reason)


def available_memory() -> int:
    """Bytes this process may still take: what the system has free, or its control group leaves."""
    free = _meminfo("MemAvailable")
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        most = _number_in(limit)
        if most is not None:
            free = min(free, max(most - (_number_in(used) or 0), 0))
    return free


def _meminfo(key: str) -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        logger.warning("cannot tell how much memory is free here; assuming 4 GiB")
    return 4 * GIB


def _number_in(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def memory_table(plan: KVCachePlan, *, weight_bytes: int, isa: str, num_threads: int) -> str:
    """The one table of the start-up log about memory and what it allows."""
    rows = [
        ("kernels", f"{isa}, {num_threads} threads"),
        ("weights", f"{weight_bytes / MIB:,.0f} MiB"),
        ("KV cache", f"{plan.num_bytes / MIB:,.0f} MiB: {plan.reason}"),
        ("KV blocks", f"{plan.num_blocks:,} of {plan.block_size} tokens, "
                      f"{plan.block_bytes / 1024:,.0f} KiB each"),
        ("max model length", f"{plan.max_model_len:,} tokens"),
        ("max concurrency", f"{plan.max_concurrency:.1f} requests of full length"),
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
