"""Fields that clients may ask for, held to the request models of vLLM 0.26.0 and the headers of llm-d-router 0.10.0.

The names stand here a second time, so that a row that is lost from the catalogue is missed.
"""

from llmd_oke.catalogue.client_requests import client_requests

HANDLES = (
    *("kv_transfer_params", "ec_transfer_params", "do_remote_prefill", "do_remote_decode", "remote_block_ids"),
    *("remote_engine_id", "remote_host", "remote_hosts", "remote_port", "remote_request_id", "remote_notify_port"),
    *("remote_handshake_port", "remote_dp_rank", "remote_dp_rank_override", "remote_bootstrap_addr", "remote_decoder"),
    *("remote_prefiller", "remote_kv_source", "kv_request_id"),
)
"""Of KV cache in the memory of servers, at any depth (pkg/sidecar/proxy/proxy.go, pkg/common/request/constants.go)."""

STEERING_FIELDS = (
    *("vllm_xargs", "extra_args", "sampling_params", "priority", "cache_salt", "request_id", "rid", "transfer_id"),
    *("data_parallel_rank", "routed_dp_rank", "prompt_embeds", "cache_hit_threshold", "session_id"),
    *("features", "mm_hashes", "mm_placeholders", "kwargs_data"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
)
"""Of ChatCompletionRequest, CompletionRequest, ResponsesRequest, AnthropicMessagesRequest, GenerateRequest and
PoolingBasicRequestMixin (vllm/entrypoints), and of SGLang's GenerateReqInput."""

LATER_FIELDS = ("kv_", "ec_", "remote_", "do_remote_", "bootstrap_", "disagg", "data_parallel_", "dp_rank")
"""What names of such fields begin with."""

STEERING_PLACES = {
    *("messages.content.uuid", "messages.content.image_url.uuid", "messages.content.content.uuid", "tools.server_url"),
    *(f"messages.content.{kind}_embeds" for kind in ("image", "audio", "video", "prompt")),
}
"""Of parts of a message (vllm/entrypoints/chat_utils.py) and of tools."""

LOADED = {
    *(f"messages.content.{kind}_url{rest}" for kind in ("image", "video", "audio") for rest in ("", ".url")),
    *("messages.content.source.url", "messages.content.content.source.url"),
    *("input.content.image_url", "input.content.image_url.url", "input.content.file_url"),
    *("input.output.image_url", "input.output.file_url"),
}
"""What servers load from a host that a client names."""

CLIENTS_FIELDS = (
    *("messages", "prompt", "input", "model", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"),
    *(
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "n",
        "presence_penalty",
        "response_format",
        "seed",
    ),
    *("stop", "stream", "stream_options", "temperature", "top_p", "tools", "tool_choice", "reasoning_effort", "user"),
    *("top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *("prompt_logprobs", "allowed_token_ids", "bad_words", "echo", "suffix", "add_generation_prompt", "documents"),
    *("continue_final_message", "chat_template", "chat_template_kwargs", "structured_outputs", "return_token_ids"),
    *("instructions", "metadata", "previous_response_id", "reasoning", "store", "text", "truncation", "system"),
    *("service_tier", "prompt_cache_key", "safety_identifier", "thinking_token_budget", "dimensions"),
    "encoding_format",
)
"""What the load generator, evaluations and clients of OpenAI's and Anthropic's send."""

STEERING_HEADERS = (
    *("x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-prefiller-host-port"),
    *("x-encoder-hosts-ports", "x-data-parallel-host-port", "x-kv-cache-source-host-port", "x-data-parallel-rank"),
    *("x-gateway-inference-objective", "x-gateway-inference-fairness-id", "x-gateway-model-name-rewrite"),
    *("x-llm-d-inference-objective", "x-llm-d-inference-fairness-id", "x-llm-d-model-name-rewrite", "prefer"),
    *("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms", "x-session-token", "x-original-path", "x-envoy-retry-on", "epp-profile"),
    *("x-session-id", "x-session-affinity", "session-id", "x-claude-code-session-id", "x-disagg-mode", "x-ec-host"),
    *("x-vllm-priority", "test-epp-endpoint-selection", "x-forwarded-path", "x-amzn-sagemaker-session-id"),
    "endpoint-load-metrics-format",
)

NOT_FOR_CLIENTS = (
    *("/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter", "/invocations"),
    *("/inference/v1/generate", "/metrics", "/server_info", "/update_weights", "/v1/audio/transcriptions"),
)


def matches(name: str, rows: list[str]) -> bool:
    return any(name.startswith(row[:-1]) if row.endswith("*") else name == row for row in rows)


def test_request_fields_that_steer_routers_or_servers_are_refused():
    """Fields that refer to KV cache are refused at any depth, and beginnings of names so that later fields are too."""
    assert set(HANDLES) <= set(client_requests().refused("anywhere"))
    assert {*STEERING_FIELDS, *(f"{beginning}*" for beginning in LATER_FIELDS)} <= set(
        client_requests().refused("body")
    )


def test_fields_for_media_ids_embeddings_and_hosts_in_messages_are_refused():
    assert set(client_requests().refused("place")) == STEERING_PLACES
    assert set(client_requests().refused("data-url")) == LOADED


def test_each_request_field_and_header_that_the_catalogue_refuses_is_tested():
    facts = client_requests()
    here = {*HANDLES, *STEERING_FIELDS, *(f"{name}*" for name in LATER_FIELDS)}
    assert {*facts.refused("anywhere"), *facts.refused("body")} == here
    assert [name for name in facts.dropped if not any(matches(header, [name]) for header in STEERING_HEADERS)] == []


def test_no_request_field_of_ordinary_openai_clients_is_refused():
    facts = client_requests()
    assert [name for name in CLIENTS_FIELDS if matches(name, facts.refused("anywhere") + facts.refused("body"))] == []


def test_request_headers_that_steer_routers_or_servers_are_removed():
    assert [name for name in STEERING_HEADERS if not matches(name, client_requests().dropped)] == []


def test_authorization_and_tracing_headers_of_requests_are_kept():
    kept = ("authorization", "content-type", "traceparent", "x-request-id", "x-forwarded-for", "x-llmd-oke-client")
    assert [name for name in kept if matches(name, client_requests().dropped)] == []


def test_vllms_development_and_non_text_api_paths_are_closed_to_clients():
    allowed = {row.path for row in client_requests().paths}
    assert allowed.isdisjoint(NOT_FOR_CLIENTS)
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models"} <= allowed


def test_each_api_path_says_whether_it_accepts_a_cache_salt():
    caches = {row.path: row.cache for row in client_requests().paths}
    assert (caches["/v1/chat/completions"], caches["/v1/messages"]) == ("salted", "unsalted")
