"""KV cache events of simulated servers: what is told of prompts' blocks, and the messages that carry it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq
from free_ports import free_port
from llmd_rehearsal.vllm.command import KvEventSettings
from llmd_rehearsal.vllm.kv_events import BlockRemoved, BlockStored, EventBatch, EventPublisher
from vllm_for_tests import refusal

FLAGS = ("--kv-events-config.enable_kv_cache_events=true", "--block-size=16")


def events(server: Any) -> list[BlockStored | BlockRemoved]:
    return [event for batch in server.published for event in batch.events]


def test_the_full_kv_blocks_of_a_computed_prompt_are_published_as_stored(serve: Callable[..., Any]):
    server = serve(*FLAGS)
    server.compute(40, 0)
    (event,) = events(server)
    assert isinstance(event, BlockStored)
    assert (event.token_ids, event.block_size, event.parent_block_hash) == (list(range(32)), 16, None)
    assert (len(event.block_hashes), event.extra_keys) == (2, [None, None])


def test_after_a_cached_prefix_only_new_kv_blocks_are_published_with_their_parent(serve: Callable[..., Any]):
    server = serve(*FLAGS)
    for tokens in (40, 70):
        server.compute(tokens, 0)
    first, second = events(server)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (second.parent_block_hash, second.token_ids) == (first.block_hashes[-1], list(range(32, 64)))


def test_kv_blocks_evicted_for_other_prompts_are_published_as_removed(serve: Callable[..., Any]):
    server = serve(*FLAGS, "--num-gpu-blocks-override=5", "--max-model-len=80")
    server.compute(48, 0, 1000)
    stored, *removed, _ = events(server)
    assert isinstance(stored, BlockStored)
    gone = [value for event in removed for value in event.block_hashes]
    assert gone
    assert set(gone) < set(stored.block_hashes)
    assert all(isinstance(event, BlockRemoved) for event in removed)


def test_a_server_without_a_kv_events_config_publishes_no_kv_cache_events(serve: Callable[..., Any]):
    server = serve()
    server.compute(400, 0)
    assert server.published == []


def test_a_subscriber_gets_kv_cache_events_as_topic_sequence_number_and_messagepack():
    port = free_port()
    publisher = EventPublisher(KvEventSettings(port, "kv@10.0.0.1:8000@m"), 0, None)
    batch = EventBatch(1.5, [BlockRemoved(block_hashes=[7], medium="GPU", group_idx=0)], 0)
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
        sent = 0
        while not subscriber.poll(50):  # what is sent before the subscription arrives is dropped
            publisher.send(batch)
            sent += 1
        topic, number, payload = subscriber.recv_multipart()
    publisher.close()
    publisher.send(batch)
    assert topic == b"kv@10.0.0.1:8000@m"
    assert int.from_bytes(number, "big") < sent
    event = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}
    assert msgspec.msgpack.decode(payload) == [1.5, [event], 0]


@pytest.mark.parametrize("key", ["endpoint=ipc://events", "replay_endpoint=tcp://*:5558"])
def test_a_server_does_not_start_with_kv_event_sockets_that_are_not_simulated(key: str):
    assert "without a replay" in refusal(FLAGS[0], f"--kv-events-config.{key}").text
