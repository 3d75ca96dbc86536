"""Fields and headers that clients may send; golden files of front doors record those that are refused."""

from llmd_oke.catalogue.client_requests import client_requests

CLIENTS_FIELDS = (
    *("messages", "prompt", "input", "model", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"),
    *("frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "n", "presence_penalty", "response_format"),
    *("seed", "stop", "stream", "stream_options", "temperature", "top_p", "tools", "tool_choice", "user"),
    *("top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "ignore_eos", "skip_special_tokens"),
    *("prompt_logprobs", "allowed_token_ids", "bad_words", "echo", "suffix", "add_generation_prompt", "documents"),
    *("continue_final_message", "chat_template", "chat_template_kwargs", "structured_outputs", "return_token_ids"),
    *("instructions", "metadata", "previous_response_id", "reasoning", "store", "text", "truncation", "system"),
    *("service_tier", "prompt_cache_key", "safety_identifier", "thinking_token_budget", "dimensions"),
    *("reasoning_effort", "encoding_format"),
)
"""What the load generator, evaluations and clients of OpenAI's and Anthropic's send."""

NOT_FOR_CLIENTS = (
    *("/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/v1/load_lora_adapter", "/invocations"),
    *("/inference/v1/generate", "/metrics", "/server_info", "/update_weights", "/v1/audio/transcriptions"),
)


def matches(name: str, rows: list[str]) -> bool:
    return any(name.startswith(row[:-1]) if row.endswith("*") else name == row for row in rows)


def test_no_request_field_of_ordinary_openai_clients_is_refused():
    facts = client_requests()
    assert [name for name in CLIENTS_FIELDS if matches(name, facts.refused("anywhere") + facts.refused("body"))] == []


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
