"""KV cache events of a simulated server, which tell routers what is in its prefix cache.

From vLLM v0.26.0 and v0.30.0, which publish the same bytes: distributed/kv_events.py, config/kv_events.py,
v1/core/block_pool.py, v1/core/kv_cache_manager.py. Simplifications: layers with a sliding window publish no events of
their own, and no batch is kept to be asked for again (`replay_endpoint`).
"""

import time
from collections.abc import Callable
from itertools import count

import msgspec
import zmq

from llmd_rehearsal.pods.networks import bound_socket
from llmd_rehearsal.vllm.command import KvEventSettings
from llmd_rehearsal.vllm.sequences import Sequence

_BACKLOG = 128
_HASH_BITS = (1 << 64) - 1
_GPU = "GPU"


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Event for consecutive full blocks of a prompt that came into the prefix cache."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Event for blocks that are no longer in the prefix cache."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """Events of one step of an engine, with the time of day in seconds."""

    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int | None = None


class EventPublisher:
    """ZeroMQ socket of one engine, bound inside the network namespace of its pod.

    A message has three parts: the topic, its number in 8 bytes, and a batch of events in MessagePack. Messages that
    nobody has subscribed to are dropped.

    Raises:
        OSError: the namespace can't be entered, or the port is in use.
    """

    def __init__(self, settings: KvEventSettings, rank: int, network_namespace: str | None) -> None:
        self._topic, self._numbers = settings.topic.encode(), count()
        listener = bound_socket("0.0.0.0", settings.port + rank, network_namespace)  # noqa: S104 - as vLLM, in the pod's network
        listener.listen(_BACKLOG)
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.USE_FD, listener.detach())
        self._socket.bind(f"tcp://*:{settings.port + rank}")

    def send(self, batch: EventBatch) -> None:
        """Publish a batch; do nothing after `close`."""
        if self._socket.closed:
            return
        number = next(self._numbers).to_bytes(8, "big")
        self._socket.send_multipart((self._topic, number, msgspec.msgpack.encode(batch)))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class KvEventLog:
    """KV cache events of one engine, which are published together after each of its steps.

    `kind` is vLLM's name for the attention of the layers, such as `full_attention`.
    """

    def __init__(self, block_size: int, kind: str, rank: int, send: Callable[[EventBatch], None]) -> None:
        self._block_size, self._kind, self._rank, self._send = block_size, kind, rank, send
        self._events: list[BlockStored | BlockRemoved] = []
        self._adapter_ids: dict[str, int] = {}

    def store(self, sequence: Sequence, first: int, end: int) -> None:
        """Add the event for the blocks of a prompt from `first` up to `end`, exclusive; nothing if there are none."""
        if first >= end:
            return
        adapter, size, hashes = sequence.adapter, self._block_size, sequence.hashes
        # Beside tokens, a block's hash includes the adapter, and in a prompt's first block the salt.
        extra = [(adapter, None if block else sequence.cache_salt) for block in range(first, end)]
        self._events.append(
            BlockStored(
                block_hashes=[value & _HASH_BITS for value in hashes[first:end]],
                parent_block_hash=hashes[first - 1] & _HASH_BITS if first else None,
                token_ids=list(sequence.token_ids[first * size : end * size]),
                block_size=size,
                lora_id=None if adapter is None else self._adapter_ids.setdefault(adapter, len(self._adapter_ids) + 1),
                medium=_GPU,
                lora_name=adapter,
                extra_keys=[tuple(key for key in keys if key is not None) or None for keys in extra],
                group_idx=0,
                kv_cache_spec_kind=self._kind,
            )
        )

    def remove(self, content: int) -> None:
        """Add the event for a block that was evicted, by its content hash."""
        self._events.append(BlockRemoved(block_hashes=[content & _HASH_BITS], medium=_GPU, group_idx=0))

    def publish(self) -> None:
        """Publish the events since the last call, if there are any."""
        if self._events:
            self._send(EventBatch(time.time(), self._events, self._rank))
            self._events = []
