"""Simulated vLLM: one process serves all vLLM containers of a rehearsed stack, each inside its pod's network namespace.

It speaks vLLM's protocol (OpenAI API, metrics, probes, NIXL hand-over between prefill and decode), refuses what vLLM
refuses, and takes the time that the latency model of `llmd_tuner` predicts: one timer for each engine step, in
model time that `time_scale` stretches or shrinks. What leaves the process as a duration (metrics) is model time; what
a client measures is wall time.

Simplifications, all of them deliberate:

- Text: there is no tokenizer. A prompt has one token for each four characters (as the endpoint picker estimates), a
  list of token ids counts exactly, a chat template adds nothing but the role, an answer is a row of short words.
- An answer has `max_tokens` tokens, with or without `ignore_eos`. A chat without a limit gets 64 to 319 tokens, by its
  prompt and the seed. `stop`, sampling, `logprobs`, tools and structured outputs are judged and then read over; a
  response (`/v1/responses`) is one message, and none is stored. Embeddings are refused. Adapters cost no time: not in a
  step, and not as they are loaded into a slot.
- Pipeline parallelism is refused at start. Speculative decoding and expert-parallel communication change nothing. Of
  the KV connectors, NixlConnector, DecodeBenchConnector and OffloadingConnector with host memory alone are simulated,
  the last beside one of the others too; all others are refused. What is kept in host memory is loaded at the peak rate
  of the GPUs' links, and written in no time.
- The KV cache holds every layer over the whole context (nothing saved for sliding windows, a bound); its size follows
  from the shape's memory and the catalogue's figure for activations. Handed over is, with the hybrid KV cache manager,
  the window alone of layers that have one. Prefix caching knows blocks of prompts, not of answers.
- A step costs the decode of its sequences and the prefill of its chunks in sum; chunks alone cost at least one decode
  step. The prefill overhead of the latency model delays a request before it queues and doesn't hold the GPU.
- `max_num_seqs` is 256 where no flag says otherwise: what the published tables show, although vLLM's code has a larger
  default for this GPU.
- A KV transfer takes its bytes over one port for each pair of ranks; the ports of a prefill server serve one transfer
  at a time, those of a decode server any number. The side channel's address is compared with the holder's, and not
  connected to.
- Loading takes its simulated time by `startup_scale`, not `time_scale`. A request gets its response headers together
  with its first token. SIGTERM ends requests at once unless `--shutdown-timeout` gives them time.
- Prometheus `_created` series and metrics that nobody in llm-d reads are left out. `llmd_oke_simulator_*` tell whether
  the machine kept up.
"""
