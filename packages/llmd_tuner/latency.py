"""Latency model of a vLLM server: times of prefill, decode step and KV transfer, linear in the limits of its hardware.

The forms are those of a roofline (operations over compute, bytes over bandwidth, all-reduce over links) with factors
that are fitted to measured tables; `values/latency` has the factors with their sources. A result is as good as its
factors: "calibrated" where these were fitted for that model, "bound" elsewhere. Everything here is pure arithmetic and
takes microseconds, because the simulated vLLM uses it in every step.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from llmd_bench.deployment import Parallelism


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model that determine its latencies, such as layers, heads and bytes of weights; `experts` is 0 for a
    dense model.
    """

    layers: int
    hidden_size: int
    attention_heads: int
    head_dim: int
    prefill_parameters: float
    """Parameters that a prompt token passes through, without the LM head."""
    decode_parameters: float
    """Parameters that a generated token passes through, with the LM head."""
    dense_bytes: float
    """Bytes of the weights that every decode step reads."""
    expert_bytes: float = 0.0
    """Bytes of the weights of all experts; a step reads those of the experts that its tokens are routed to."""
    experts: int = 0
    active_experts: int = 0
    expert_parameters: float = 0.0
    """Parameters of the experts that a token is routed to; shared experts, which all tokens pass through, count as
    dense layers: each rank has its own."""
    key_value_bytes_per_token: float = 0.0
    """Bytes of a token's KV cache over all layers."""
    key_value_parts: int = 0
    """Number of GPUs that a token's KV cache can be split over: the KV heads, or 1 with latent attention. Further GPUs
    hold copies; 0 means any number.
    """
    key_value_regions: int = 1
    """Number of memory regions that a block of KV cache is spread over: the layers, or twice as many where keys and
    values are separate.
    """
    window_tokens: int = 0
    window_layers: int = 0
    windows_alone: bool = False
    """Whether layers with a sliding window transfer only the blocks in the window (vLLM's hybrid KV cache manager)
    instead of those of all tokens.
    """
    layers_without_attention: int = 0
    """Number of layers without a KV cache, such as those with linear attention."""
    state_bytes: float = 0.0
    """Bytes of a sequence's state over all layers that keep one instead of a KV cache; each step reads and writes
    it.
    """
    draft_bytes: float = 0.0
    """Bytes of the draft model's weights, without experts, that each drafted token of a step reads; 0 without
    drafts.
    """
    draft_expert_bytes: float = 0.0
    """Bytes of the weights of all experts of the draft model; a token is routed to as many of them as to experts of the
    model itself.
    """

    @property
    def full_layers(self) -> int:
        """Number of layers whose attention covers all tokens, without a window."""
        return self.layers - self.window_layers - self.layers_without_attention

    def key_value_copies(self, gpus: int) -> int:
        """Return how many of a server's `gpus` GPUs hold a copy of the same part of the KV cache; 1 if each holds
        another part.
        """
        return max(1, gpus // self.key_value_parts) if self.key_value_parts else 1


def window_blocks(tokens: int, window_tokens: int, block_size: int) -> int:
    """Return how many blocks of a prompt's KV cache are transferred for a layer with a sliding window: the blocks that
    the next token attends to (vLLM 0.26, `SlidingWindowManager.get_num_skipped_tokens`).
    """
    return -(-tokens // block_size) - max(0, tokens - window_tokens + 1) // block_size


@dataclass(frozen=True)
class GpuLimits:
    """Hardware limits of one GPU and its ports, in bytes and operations per second.

    A link is counted in one direction. A GPU has one link to each other GPU, or a single link to all of them through a
    switch.
    """

    memory_bytes_per_s: float
    flops: float
    link_bytes_per_s: float
    port_bytes_per_s: float
    switched: bool = False
    host_bytes_per_s: float = float("inf")
    """Bytes per second of a transfer between the memory of a GPU and the memory of its node, in one direction."""
    disk_bytes_per_s: float = float("inf")
    """Bytes per second that a node reads from its disks."""


@dataclass(frozen=True)
class Factors:
    """Fitted factors between a server's times and the limits of its hardware: efficiencies are shares of a limit,
    factors multiply the ideal time, and names that end in `_s` are additional seconds.
    """

    prefill_overhead_s: float
    prefill_compute_efficiency: float
    all_reduce_efficiency: float
    decode_layer_s: float
    decode_bytes_factor: float
    decode_flops_factor: float
    decode_sequence_s: float
    transfer_efficiency: float
    handshake_s: float
    transfer_descriptor_s: float = 0.0
    """Seconds for each memory region of a transferred KV cache, in addition to the time for its bytes."""
    decode_fixed_s: tuple[tuple[Parallelism, float], ...] = ()
    """Fixed seconds of each decode step, by the server's parallelism; other parallelisms take the value of their tensor
    parallel size alone, or the mean of all.
    """
    all_reduce_shares: tuple[tuple[int, float], ...] = ()
    """Shares of the time of a prompt's all-reduces that remain with quantization, by ascending tensor parallel size;
    other sizes take the value of the next smaller one. Empty without quantization.
    """
    expert_imbalance: float = 1.0
    """Number of tokens that are routed to the experts of the busiest GPU, divided by the mean over all GPUs, where each
    GPU holds whole experts.
    """


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding: the number of tokens drafted in each step, and the share of drafted tokens that is
    accepted.
    """

    tokens: int
    accepted_share: float


@dataclass(frozen=True)
class LatencyModel:
    """Latency model of the servers of one model on one kind of GPU. With `drafting`, the time of a decode step is
    divided by the mean number of tokens that it yields.
    """

    sizes: Sizes
    hardware: GpuLimits
    factors: Factors
    drafting: Drafting | None = None

    def prefill_s(self, tokens: int, context_tokens: int = 0, parallelism: Parallelism | int = 1) -> float:
        """Return the GPU time in seconds of a prompt chunk of `tokens` that follows `context_tokens` already computed
        ones.
        """
        return self.server(parallelism).prefill_s(tokens, context_tokens)

    def decode_step_s(self, batch: int, context_tokens: float, parallelism: Parallelism | int = 1) -> float:
        """Return the time in seconds of a decode step, which yields one token for each of a rank's `batch` sequences
        with a mean context of `context_tokens`.
        """
        return self.server(parallelism).decode_step_s(batch, context_tokens)

    def key_value_transfer_s(self, tokens: int, rails: int, block_size: int) -> float:
        """Return the time in seconds to transfer the KV cache of `tokens` from prefill to decode through `rails` ports.

        t = copies x bytes / (port rate x efficiency x rails) + descriptors x time of one. Each GPU of a server has as
        many descriptors, for its own heads or its copy. The handshake before the first transfer between two servers is
        not included. Layers with a sliding window are assumed to be transferred at the same rate as others, which
        nobody has measured.
        """
        copies = self.sizes.key_value_copies(rails)
        rate = self.hardware.port_bytes_per_s * self.factors.transfer_efficiency * rails / copies
        descriptors = self.descriptors(tokens, block_size)
        return self.key_value_bytes(tokens, block_size) / rate + descriptors * self.factors.transfer_descriptor_s

    def key_value_bytes(self, tokens: int, block_size: int) -> float:
        """Return the transferred bytes of KV cache for `tokens`, in whole blocks, summed over layers by their kind of
        attention.
        """
        sizes, whole = self.sizes, -(-tokens // block_size) * block_size
        layer_tokens = whole * sizes.full_layers + self.window_tokens(tokens, block_size) * sizes.window_layers
        return sizes.key_value_bytes_per_token * layer_tokens / max(1, sizes.layers - sizes.layers_without_attention)

    def window_tokens(self, tokens: int, block_size: int) -> int:
        """Return for how many of `tokens` the KV cache of a layer with a sliding window is transferred, in whole
        blocks.
        """
        if not self.sizes.windows_alone:
            return -(-tokens // block_size) * block_size
        return window_blocks(tokens, self.sizes.window_tokens, block_size) * block_size

    def descriptors(self, tokens: int, block_size: int) -> int:
        """Return the number of pieces in which the KV cache of `tokens` is transferred: one for each memory region of
        each block.
        """
        sizes = self.sizes
        per_layer = sizes.key_value_regions // max(1, sizes.layers - sizes.layers_without_attention)
        windowed = self.window_tokens(tokens, block_size) // block_size
        left_out = (-(-tokens // block_size) - windowed) * sizes.window_layers * per_layer
        return -(-tokens // block_size) * sizes.key_value_regions - left_out

    def server(self, parallelism: Parallelism | int) -> "ServerLatency":
        """Return the latency model of a server with the given parallelism; a number is a tensor parallel size."""
        return _server(self, Parallelism(parallelism) if isinstance(parallelism, int) else parallelism)


@dataclass(frozen=True)
class ServerLatency:
    """Latency model of one server, or of each of its data parallel ranks, which all have an equal share of the load;
    constants that depend on its size are computed once.

    Before experts, each rank sends the activations of all its tokens to all other ranks, and receives the results
    (vLLM's default `allgather_reducescatter`), with the efficiency of all-reduce. Where GPUs hold whole experts, all
    wait for the busiest GPU. Both are bounds: nobody has measured them on MI300X.
    """

    model: LatencyModel
    parallelism: Parallelism

    @property
    def tensor_parallel_size(self) -> int:
        """Number of GPUs of one data parallel rank of the server."""
        return self.parallelism.tensor_parallel_size

    def prefill_s(self, tokens: int, context_tokens: int = 0) -> float:
        """Return the GPU time in seconds of a prompt chunk of `tokens` that follows `context_tokens` already computed
        ones.

        t = F / (tp x efficiency x peak) + all-reduce + exchange between ranks, where F = 2 n (dense + imbalance
        experts) + 4 heads head_dim (L_full (n context + n^2 / 2) + L_window min(window, context + n) n).
        """
        sizes = self.model.sizes
        full = sizes.full_layers * tokens * (context_tokens + tokens / 2)
        window = sizes.window_layers * min(sizes.window_tokens, context_tokens + tokens) * tokens
        token_s, attention_s = self._prefill_terms
        return tokens * token_s + (full + window) * attention_s

    def decode_step_s(self, batch: int, context_tokens: float) -> float:
        """Return the time in seconds of a decode step, which yields one token for each of `batch` sequences with a mean
        context of `context_tokens`.

        t = a1 layers + fixed(tp) + a2 bytes / bandwidth + a3 flops / peak + a4 batch + exchange between ranks, where
        bytes = (dense + experts min(1, imbalance (1 - (1 - k/E)^(dp batch))) / dp + batch (copies KV + 2 state)) / tp
        and flops = 2 batch (dense + imbalance experts) / tp. With drafting it is the mean time of a token: that of a
        step that verifies drafts, divided by its own token and the accepted ones.
        """
        if (drafting := self.model.drafting) is None:
            return self.checked_step_s(batch, context_tokens, 0)
        tokens = 1.0 + drafting.tokens * drafting.accepted_share
        return self.checked_step_s(batch, context_tokens, drafting.tokens) / tokens

    def checked_step_s(self, batch: int, context_tokens: float, drafted: int) -> float:
        """Return the time in seconds of a step that verifies `drafted` tokens of each sequence beside its next one, and
        drafts as many new ones.

        It is a bound: nobody has measured drafts on MI300X. Each drafted token is computed like a sequence of its own
        but reads no KV cache; each pass of the draft model costs one layer's start and reads its weights.
        """
        alone_s, experts_s, _, _ = self._step_terms
        step_s = alone_s + experts_s * self._routed(batch * (1 + drafted)) + batch * self._sequence_s(context_tokens)
        if not drafted:
            return step_s
        return step_s + drafted * (batch * self._sequence_terms[0] + self._draft_pass_s(batch))

    @cached_property
    def _step_terms(self) -> tuple[float, float, float, float]:
        """Terms of a decode step's time that don't depend on its batch: the seconds of a step without any sequence, the
        seconds of reading all experts, the bytes read by the busiest GPU over the mean, and the share of experts that
        one sequence of each rank does not use.
        """
        sizes, ranks = self.model.sizes, self.parallelism.data_parallel_size
        alone_s = self.model.factors.decode_layer_s * sizes.layers + self._fixed_s + sizes.dense_bytes * self._byte_s
        missed = 1.0 - sizes.active_experts / sizes.experts if sizes.experts else 1.0
        return alone_s, sizes.expert_bytes * self._byte_s / ranks, self._imbalance, missed**ranks

    def _sequence_s(self, context_tokens: float) -> float:
        """Return the seconds that each sequence with a context of `context_tokens` adds to a decode step."""
        sizes = self.model.sizes
        sequence_s, key_value_s = self._sequence_terms
        full = sizes.full_layers * context_tokens
        window = sizes.window_layers * min(context_tokens, sizes.window_tokens)
        return sequence_s + (full + window) * key_value_s

    def _routed(self, tokens: int) -> float:
        """Return the share of its experts that the busiest GPU reads for `tokens` of each rank."""
        _, _, imbalance, missed = self._step_terms
        return min(1.0, imbalance * (1.0 - missed**tokens))

    def _draft_pass_s(self, batch: int) -> float:
        """Return the time in which a draft proposes one token for each sequence, in seconds."""
        sizes = self.model.sizes
        routed = sizes.draft_expert_bytes / self.parallelism.data_parallel_size * self._routed(batch)
        return self.model.factors.decode_layer_s + (sizes.draft_bytes + routed) * self._byte_s

    def host_load_s(self, tokens: int) -> float:
        """Return a lower bound, in seconds, of the time to load the KV cache of `tokens` from the node's memory: each
        of a rank's GPUs loads its own part at the peak rate of its link.
        """
        sizes, gpus = self.model.sizes, self.tensor_parallel_size
        rate = self.model.hardware.host_bytes_per_s * gpus / sizes.key_value_copies(gpus)
        return tokens * sizes.key_value_bytes_per_token / rate

    def disk_read_s(self, tokens: int) -> float:
        """Return the time in seconds to read the KV cache of `tokens` from the node's disks into its memory, for one
        server at a time. Files have all copies of KV heads, but a latent cache once.
        """
        sizes = self.model.sizes
        copies = 1 if sizes.key_value_parts == 1 else sizes.key_value_copies(self.tensor_parallel_size)
        return tokens * sizes.key_value_bytes_per_token * copies / self.model.hardware.disk_bytes_per_s

    @property
    def _imbalance(self) -> float:
        """Work of the GPU with the busiest experts over the mean: 1 where each GPU has a part of all experts."""
        whole = self.parallelism.expert_parallel and self.parallelism.gpus > 1
        return self.model.factors.expert_imbalance if whole else 1.0

    @property
    def _parameters_in_wait(self) -> float:
        """Parameters of a token beyond its own that a GPU waits for while the busiest one computes."""
        return (self._imbalance - 1.0) * self.model.sizes.expert_parameters

    @cached_property
    def _prefill_terms(self) -> tuple[float, float]:
        """Seconds of each prompt token, and of its attention to each other token in each layer."""
        sizes, factors = self.model.sizes, self.model.factors
        flops = self.tensor_parallel_size * factors.prefill_compute_efficiency * self.model.hardware.flops
        parameters = sizes.prefill_parameters + self._parameters_in_wait
        token_s = 2 * parameters / flops + self._all_reduce_token_s + self._exchange_token_s
        return token_s, 4 * sizes.attention_heads * sizes.head_dim / flops

    @cached_property
    def _all_reduce_token_s(self) -> float:
        """Seconds for each prompt token of two ring all-reduces of a BF16 activation in each layer, less what
        quantization saves; a GPU sends over all its links at once.
        """
        tensor_parallel_size = self.tensor_parallel_size
        if tensor_parallel_size == 1:
            return 0.0
        sizes, hardware = self.model.sizes, self.model.hardware
        sent = 2 * sizes.layers * 2 * (tensor_parallel_size - 1) / tensor_parallel_size * sizes.hidden_size * 2
        links = 1 if hardware.switched else tensor_parallel_size - 1
        rate = hardware.link_bytes_per_s * links * self.model.factors.all_reduce_efficiency
        shares = [share for size, share in self.model.factors.all_reduce_shares if size <= tensor_parallel_size]
        return sent * (shares[-1] if shares else 1.0) / rate

    @cached_property
    def _exchange_token_s(self) -> float:
        """Seconds for each token of a rank to be with all others in each layer, and back, in BF16. What is of other
        nodes comes to a node once, by the ports of all its GPUs, and goes on over its links.
        """
        sizes, hardware, spread = self.model.sizes, self.model.hardware, self.parallelism
        others = spread.data_parallel_size - 1
        if not others or not sizes.experts:
            return 0.0
        efficiency = self.model.factors.all_reduce_efficiency
        links = 1 if hardware.switched else spread.gpus_per_node - 1
        inside_s = others / (hardware.link_bytes_per_s * links * efficiency) if links else 0.0
        outside = spread.data_parallel_size - spread.data_parallel_size_local
        between_s = outside / (hardware.port_bytes_per_s * spread.gpus_per_node * efficiency)
        return 2 * sizes.layers * sizes.hidden_size * 2 * (inside_s + between_s)

    @property
    def _fixed_s(self) -> float:
        """Seconds of each step that neither bytes nor operations explain."""
        fixed = dict(self.model.factors.decode_fixed_s)
        mean_s = sum(fixed.values()) / len(fixed) if fixed else 0.0
        return fixed.get(self.parallelism, fixed.get(Parallelism(self.tensor_parallel_size), mean_s))

    @cached_property
    def _byte_s(self) -> float:
        """Seconds of reading a byte that the GPUs of a rank share."""
        factor, rate = self.model.factors.decode_bytes_factor, self.model.hardware.memory_bytes_per_s
        return factor / rate / self.tensor_parallel_size

    @cached_property
    def _sequence_terms(self) -> tuple[float, float]:
        """Seconds of each sequence, and of the KV cache of one token of context in one layer that has one."""
        sizes, factors, hardware = self.model.sizes, self.model.factors, self.model.hardware
        byte_s = self._byte_s
        compute = 2 * (sizes.decode_parameters + self._parameters_in_wait) / hardware.flops / self.tensor_parallel_size
        state_s = 2 * sizes.state_bytes * byte_s
        sequence_s = factors.decode_sequence_s + factors.decode_flops_factor * compute + state_s
        sequence_s += self._exchange_token_s
        copies = sizes.key_value_copies(self.tensor_parallel_size)
        cached = copies * sizes.key_value_bytes_per_token / max(1, sizes.layers - sizes.layers_without_attention)
        return sequence_s, cached * byte_s


@lru_cache(maxsize=256)
def _server(model: LatencyModel, parallelism: Parallelism) -> ServerLatency:
    return ServerLatency(model, parallelism)


_IDEAL = Factors(
    prefill_overhead_s=0.0,
    prefill_compute_efficiency=1.0,
    all_reduce_efficiency=float("inf"),
    decode_layer_s=0.0,
    decode_bytes_factor=1.0,
    decode_flops_factor=0.0,
    decode_sequence_s=0.0,
    transfer_efficiency=1.0,
    handshake_s=0.0,
)


def least_step_s(model: LatencyModel, batch: int, context_tokens: float, parallelism: Parallelism | int) -> float:
    """Return the lower bound in seconds of a decode step: the time to read weights and KV cache at the memory's
    bandwidth.
    """
    return ideal(model).server(parallelism).decode_step_s(batch, context_tokens)


def ideal(model: LatencyModel) -> LatencyModel:
    """Return the latency model with the same sizes and hardware and no losses: prefills take only their arithmetic,
    decode steps only their memory reads.
    """
    return replace(model, factors=_IDEAL)
