"""Types of the native module, by the part of csrc that binds them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.ops.ops import F32, I32

# sampling

_Record = tuple[list[int], list[float], int]
_RowErrors = list[tuple[int, str]]

class RowParams:
    vocab_size: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    min_tokens: int
    stop_ids: list[int]
    logit_bias: list[tuple[int, float]]
    allowed_ids: list[int] | None
    bad_words: list[list[int]]
    num_logprobs: int | None
    logprob_ids: list[int]
    def __init__(self) -> None: ...

class RowState:
    def __init__(
        self, params: RowParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None: ...
    def append(self, token_id: int) -> None: ...
    def force_next(self, token_id: int) -> None: ...
    @property
    def num_output_tokens(self) -> int: ...

class RowSampler:
    def __init__(self, vocab_size: int, num_threads: int = 0, portable: bool = False) -> None: ...
    def sample(
        self,
        logits: F32,
        rows: list[RowState],
        masks: npt.NDArray[np.uint32] | None = None,
        mask_rows: list[int] = ...,
    ) -> tuple[list[int], list[_Record | None], _RowErrors]: ...
    def score(
        self,
        logits: F32,
        targets: Sequence[int],
        num_logprobs: int,
        asked_for: Sequence[int] = (),
    ) -> tuple[list[_Record], _RowErrors]: ...

def philox4x32_10(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def uniform_draw(seed: int, index: int) -> float: ...

# step

class StepBatch:
    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, max_num_tokens: int
    ) -> None: ...
    def set(
        self, row: int, token_ids: Sequence[int], block_ids: Sequence[int], num_computed: int
    ) -> None: ...
    def extend(
        self, row: int, block_ids: Sequence[int], num_computed: int, draft: Sequence[int] = ()
    ) -> None: ...
    def append(self, row: int, token_id: int) -> None: ...
    def gather(self, rows: Sequence[int], counts: Sequence[int]) -> list[int]: ...
    def tokens(self, row: int, first: int, end: int) -> list[int]: ...
    def num_tokens(self, row: int) -> int: ...
    @property
    def input_ids(self) -> I32: ...
    @property
    def positions(self) -> I32: ...
    @property
    def slot_mapping(self) -> I32: ...
    @property
    def query_start_loc(self) -> I32: ...
    @property
    def seq_lens(self) -> I32: ...
    @property
    def block_table(self) -> I32: ...
    @property
    def logits_rows(self) -> I32: ...

# ops

_Bytes = npt.NDArray[np.uint8]

class StoredMatrix: ...

class Linear:
    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int: ...

class Table: ...

class KvCache:
    def release(self) -> None: ...

class Slot:
    @property
    def width(self) -> int: ...

def stored_matrix(
    format: str, rows: int, columns: int, bytes: _Bytes, is_mapped: bool
) -> StoredMatrix: ...
def available_isas() -> list[str]: ...
def bind_threads(cpus: list[int]) -> None: ...

class Home:
    def __init__(self, isa: str, num_threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...
    def prepare_linear(self, parts: list[StoredMatrix], quantization: str | None) -> Linear: ...
    def prepare_gated(
        self, gate: StoredMatrix, up: StoredMatrix, quantization: str | None
    ) -> Linear: ...
    def prepare_table(self, table: StoredMatrix) -> Table: ...
    def make_cache(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: str
    ) -> KvCache: ...

class Program:
    def __init__(self, home: Home) -> None: ...
    def input(self, width: int) -> Slot: ...
    def embedding(self, table: Table, scale: float) -> Slot: ...
    def rms_norm(self, x: Slot, weight: F32, eps: float) -> Slot: ...
    def linear(self, x: Slot, weight: Linear, bias: F32 | None) -> Slot: ...
    def gated_linear(self, x: Slot, weight: Linear, activation: str) -> Slot: ...
    def add(self, x: Slot, y: Slot) -> Slot: ...
    def rope(self, inv_freq: F32, scale: float) -> Slot: ...
    def rope_and_cache(
        self,
        qkv: Slot,
        rope: Slot,
        cache: KvCache,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: F32 | None,
        k_norm: F32 | None,
        eps: float,
    ) -> Slot: ...
    def attention(
        self,
        q: Slot,
        cache: KvCache,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int | None,
    ) -> Slot: ...

class Step:
    def __init__(
        self,
        input_ids: I32,
        positions: I32,
        slot_mapping: I32,
        query_start_loc: I32,
        seq_lens: I32,
        block_table: I32,
        given_rows: I32 | None = None,
        given: F32 | None = None,
    ) -> None: ...

class Executable:
    def __init__(
        self,
        home: Home,
        forward: Program,
        hidden: Slot,
        logits: Program,
        logits_input: Slot,
        result: Slot,
        hidden_size: int,
        vocab_size: int,
        max_num_tokens: int,
    ) -> None: ...
    def forward(self, step: Step) -> None: ...
    def logits(self, rows: I32) -> F32: ...

# bench_limits

def available_cores() -> int: ...
def read_bandwidth(num_bytes: int, num_threads: int) -> float: ...
def compute_peaks(num_threads: int) -> list[tuple[str, str, float]]: ...
