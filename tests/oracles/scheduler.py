"""The rules of the scheduler once more, slow and plain: lists, scans, whole prefixes as keys.

It shares no code with `headrace.core`. Prefixes are compared token by token, not by digest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.config.engine import SchedulerConfig, SpeculativeConfig
from tests.oracles.ngrams import continuation


@dataclass
class OracleRequest:
    """A request in the oracle."""

    request_id: str
    tokens: list[int]
    num_prompt: int
    max_total: int
    rank: tuple[float, ...]
    salt: str | None
    reads_cache: bool
    tenant: str | None = None
    level: int = 0
    """Its priority, where those count."""
    charged: int = 0
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    offered: int = 0
    """Leading blocks that were offered for sharing."""
    preemptions: int = 0
    cached: int | None = None
    max_guess: int = 3
    """Tokens of its next draft, at most."""
    misses: int = 0
    """Drafts in a row of which nothing was right."""
    right: float = 1.0
    guessed: float = 2.0
    """Tokens of drafts, each draft weighing a tenth less than the next."""
    rests_until: int = 0
    """The length at which it may have its next draft."""
    probes_at: int = 0
    """The same while its drafts do not pay."""


@dataclass
class Decision:
    """What a step is to compute."""

    new: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = field(default_factory=list)
    """(id, known tokens, blocks, computed tokens)"""
    old: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    """(id, added blocks, computed tokens)"""
    counts: dict[str, int] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    drafts: dict[str, list[int]] = field(default_factory=dict)


class OracleScheduler:
    """Same decisions as `Scheduler`, block for block."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        shares_prefixes: bool,
        speculative: SpeculativeConfig | None = None,
        quantum: int = 128,
    ) -> None:
        self.config = config
        self.quantum = quantum
        self.turns: dict[int, list[str | None]] = {}
        """Per priority: the tenants that wait, the next one first."""
        self.balances: dict[str | None, int] = {}
        self.speculative = speculative
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.max_model_len = max_model_len
        self.shares_prefixes = shares_prefixes
        self.waiting: list[OracleRequest] = []
        self.running: list[OracleRequest] = []
        self.free: list[int] = list(range(num_blocks))
        self.content: dict[int, tuple[str | None, tuple[int, ...]]] = {}
        """Block -> salt and all tokens up to its end, when it can be found."""
        self.forgotten: list[str] = []
        self.num_added = 0
        self.queries = 0
        self.hits = 0

    def add(
        self,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        *,
        priority: int,
        arrival: float,
        salt: str | None,
        reads_cache: bool,
        tenant: str | None = None,
    ) -> bool:
        """Queue a request; False when it could never fit."""
        max_total = min(len(prompt) + max_tokens, self.max_model_len)
        if max_total > self.num_blocks * self.block_size:
            return False
        by_priority = self.config.policy == "priority"
        rank = (priority, arrival, self.num_added) if by_priority else (self.num_added,)
        self.num_added += 1
        level = priority if by_priority else 0
        if tenant not in [one.tenant for one in self.live()]:
            self.balances[tenant] = self.quantum
        self.waiting.append(
            OracleRequest(
                request_id,
                list(prompt),
                len(prompt),
                max_total,
                rank,
                salt,
                reads_cache,
                tenant,
                level,
            )
        )
        turns = self.turns.setdefault(level, [])
        if tenant not in turns:
            turns.append(tenant)
        return True

    def abort(self, request_id: str) -> None:
        for request in list(self.waiting):
            if request.request_id == request_id:
                self._stop_waiting(request)
                self._settle(request)
        for request in list(self.running):
            if request.request_id == request_id:
                self._leave(request)
                self._settle(request)

    def next_waiting(self, *, foretell: bool = False) -> OracleRequest:
        """The oldest of the tenant whose turn it is, at the best priority.

        Args:
            foretell: the turn is not taken yet.
        """
        level = min(one.level for one in self.waiting)
        turns, balances = self.turns[level], self.balances
        if foretell:
            turns, balances = turns.copy(), balances.copy()
        while balances[turns[0]] <= 0:
            balances[turns[0]] += self.quantum
            turns.append(turns.pop(0))
        of_tenant = [r for r in self.waiting if (r.level, r.tenant) == (level, turns[0])]
        return min(of_tenant, key=lambda r: r.rank)

    def _stop_waiting(self, request: OracleRequest) -> None:
        self.waiting.remove(request)
        key = (request.level, request.tenant)
        if key not in [(one.level, one.tenant) for one in self.waiting]:
            self.turns[request.level].remove(request.tenant)

    def _charge(self, request: OracleRequest, num: int) -> int:
        if all(one.tenant == request.tenant for one in self.waiting):
            return 0
        self.balances[request.tenant] -= num
        return num

    def _settle(self, request: OracleRequest) -> None:
        self._charge(request, len(request.tokens) - request.num_prompt)
        if request.tenant not in [one.tenant for one in self.live()]:
            del self.balances[request.tenant]

    def live(self) -> list[OracleRequest]:
        return self.waiting + self.running

    def schedule(self, max_prefill_tokens: int | None = None) -> Decision:
        decision = Decision()
        left = self.config.max_num_batched_tokens
        prefill_left = left if max_prefill_tokens is None else max_prefill_tokens
        has_preempted = False
        done: list[OracleRequest] = []
        while True:
            rest = sorted((r for r in self.running if r not in done), key=lambda r: r.rank)
            if not rest:
                break
            request = rest[0]
            num = len(request.tokens) - request.computed
            if num > 1:
                num = min(self._chunk(num), left - (len(rest) - 1), prefill_left)
                if num == 0:
                    done.append(request)
                    continue
                prefill_left -= num
            lacking = self._blocks_for(request.computed + num) - len(request.blocks)
            if lacking > len(self.free):
                self._preempt(rest[-1])
                has_preempted = True
                continue
            added = self._take(max(0, lacking))
            request.blocks += added
            decision.counts[request.request_id] = num
            decision.old.append((request.request_id, tuple(added), request.computed))
            left -= num
            done.append(request)
        if not has_preempted:
            left = self._admit(decision, left, prefill_left)
        if self.speculative is not None:
            self._add_drafts(decision, left, self.speculative)
        decision.forgotten, self.forgotten = self.forgotten, []
        return decision

    def _add_drafts(self, decision: Decision, left: int, config: SpeculativeConfig) -> None:
        if len(self.running) > config.disable_by_batch_size:
            return
        for idx, (request_id, added, computed) in enumerate(decision.old):
            (request,) = (r for r in self.running if r.request_id == request_id)
            length = len(request.tokens)
            if length == request.num_prompt or computed != length - 1:
                continue
            if length < request.rests_until:
                continue
            limit = min(config.num_speculative_tokens, request.max_guess)
            num_running = len(self.running)
            if request.right * (num_running + 3) < request.guessed * num_running:
                if length < request.probes_at:
                    continue
                limit = 1
            num = min(limit, left, request.max_total - 1 - length)
            guess = (
                continuation(
                    request.tokens, num, config.prompt_lookup_min, config.prompt_lookup_max
                )
                if num > 0
                else []
            )
            lacking = self._blocks_for(length + len(guess)) - len(request.blocks)
            if lacking > 0 and lacking + len(self.running) > len(self.free):
                guess = guess[: len(request.blocks) * self.block_size - length]
                lacking = 0
            if not guess:
                continue
            taken = self._take(max(0, lacking))
            request.blocks += taken
            decision.old[idx] = (request_id, (*added, *taken), computed)
            decision.counts[request_id] += len(guess)
            decision.drafts[request_id] = guess
            left -= len(guess)

    def _admit(self, decision: Decision, left: int, prefill_left: int) -> int:
        config = self.config
        places = min(config.max_num_seqs, config.max_num_batched_tokens)
        while self.waiting and min(left, prefill_left) > 0 and len(self.running) < places:
            request = self.next_waiting()
            prefix = self._longest_prefix(request)
            computed = len(prefix) * self.block_size
            num = len(request.tokens) - computed
            if config.enable_chunked_prefill:
                num = min(self._chunk(num), left, prefill_left)
            elif num > min(left, prefill_left):
                return left
            can_grow = [
                r for r in self.running if len(r.blocks) < self._blocks_for(r.max_total - 1)
            ]
            lacking = self._blocks_for(len(request.tokens)) - len(prefix)
            idle_hits = [block for block in prefix if block in self.free]
            if lacking + len(idle_hits) + len(can_grow) > len(self.free):
                return left
            for block in idle_hits:
                self.free.remove(block)
            request.blocks = prefix + self._take(lacking)
            request.computed = computed
            request.offered = len(prefix)
            if request.cached is None:
                request.cached = min(computed, request.num_prompt)
                if self.shares_prefixes and request.reads_cache:
                    self.queries += request.num_prompt
                    self.hits += request.cached
            self._stop_waiting(request)
            request.charged = self._charge(request, len(request.tokens))
            self.running.append(request)
            decision.counts[request.request_id] = num
            decision.new.append(
                (request.request_id, tuple(request.tokens), tuple(request.blocks), computed)
            )
            left -= num
            prefill_left -= num
        return left

    def update(
        self,
        decision: Decision,
        sampled: dict[str, list[int]],
        ended: set[str],
        failed: set[str],
    ) -> None:
        """Take in a step's tokens; `ended` and `failed` requests leave after it.

        Args:
            sampled: as the worker gave them; of a request that has ended, up to its end.
        """
        for request_id, num in decision.counts.items():
            (request,) = (r for r in self.running if r.request_id == request_id)
            if request_id not in failed:
                guess = decision.drafts.get(request_id, [])
                tokens = sampled.get(request_id, [])
                request.tokens += tokens
                request.computed += num - len(guess) + max(0, len(tokens) - 1)
                self._make_findable(request)
                if guess:
                    right = sum(a == b for a, b in zip(guess, tokens, strict=False))
                    self._learn(request, len(guess), right)
            if request_id in ended or request_id in failed:
                self._leave(request)
                self._settle(request)

    def _learn(self, request: OracleRequest, num_guessed: int, num_right: int) -> None:
        request.right = 0.9 * request.right + num_right
        request.guessed = 0.9 * request.guessed + num_guessed
        request.probes_at = len(request.tokens) - 1 + 8
        request.max_guess = 2 * num_right + 1
        request.misses = 0 if num_right else request.misses + 1
        if request.misses:
            rest = min(64, 2 ** (request.misses - 1))
            request.rests_until = len(request.tokens) - 1 + rest

    def _chunk(self, num: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        return min(num, threshold) if threshold else num

    def _blocks_for(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def _take(self, num: int) -> list[int]:
        taken = [self.free.pop(0) for _ in range(num)]
        for block in taken:
            self.content.pop(block, None)
        return taken

    def _preempt(self, request: OracleRequest) -> None:
        self._leave(request)
        request.computed = 0
        request.preemptions += 1
        self.waiting.append(request)
        turns = self.turns.setdefault(request.level, [])
        self.turns[request.level] = [request.tenant, *(t for t in turns if t != request.tenant)]
        self.balances[request.tenant] += request.charged
        request.charged = 0

    def _leave(self, request: OracleRequest) -> None:
        self.running.remove(request)
        self.forgotten.append(request.request_id)
        in_use = {block for other in self.running for block in other.blocks}
        for block in reversed(request.blocks):
            if block in in_use:
                continue
            if block in self.content:
                self.free.append(block)
            else:
                self.free.insert(0, block)
        request.blocks = []

    def _key(self, request: OracleRequest, idx: int) -> tuple[str | None, tuple[int, ...]]:
        return request.salt, tuple(request.tokens[: (idx + 1) * self.block_size])

    def _longest_prefix(self, request: OracleRequest) -> list[int]:
        blocks: list[int] = []
        if not (self.shares_prefixes and request.reads_cache):
            return blocks
        for idx in range((len(request.tokens) - 1) // self.block_size):
            key = self._key(request, idx)
            found = [block for block, content in self.content.items() if content == key]
            if not found:
                break
            blocks.append(found[0])
        return blocks

    def _make_findable(self, request: OracleRequest) -> None:
        if not self.shares_prefixes:
            return
        num_full = request.computed // self.block_size
        for idx in range(request.offered, num_full):
            key = self._key(request, idx)
            if key not in self.content.values():
                self.content[request.blocks[idx]] = key
        request.offered = num_full
