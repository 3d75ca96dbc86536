"""Makes a batch of KV cache events by vLLM's own classes: `kv_events.py < events.json`.

It runs in vLLM's environment. Each entry of input is an event's class with its fields; the answer has the bytes of the
batch in hexadecimal, and vLLM's name for the memory of a GPU.
"""

import json
import sys

import msgspec
from vllm.distributed import kv_events


def main() -> None:
    """Answer one batch."""
    events = []
    for kind, fields in json.load(sys.stdin):
        if keys := fields.get("extra_keys"):
            fields["extra_keys"] = [own and tuple(own) for own in keys]
        events.append(getattr(kv_events, kind)(**fields))
    batch = kv_events.KVEventBatch(ts=1.5, events=events, data_parallel_rank=1)
    print(json.dumps({"medium": kv_events.MEDIUM_GPU, "bytes": msgspec.msgpack.Encoder().encode(batch).hex()}))


if __name__ == "__main__":
    main()
