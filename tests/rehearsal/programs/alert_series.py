"""Series with which each alert fires, and with which it clears: rows of promtool's own test files."""

NAMESPACE = "llm-d"
POD = 'namespace="llm-d",llmd_oke_model="gpt",llmd_oke_unit="gpt"'
PICKER = "v0.10.0"
"""The endpoint picker whose metrics these are."""

DECISIONS = 'llm_d_epp_disagg_decision_total{namespace="llm-d",service="gpt-epp",decision_type='
TRANSFERS = f"{{{POD}}}"
PREFILL, DECODE = f'{{{POD},llm_d_ai_role="prefill"}}', f'{{{POD},llm_d_ai_role="decode"}}'
GPU = '{hostname="node",gpu_id="0"}'
PORT = '{instance="node",device="mlx5_0",port="1"}'
RESTARTS = 'kube_pod_container_status_restarts_total{namespace="llm-d",container="vllm",pod='
RUNNING, WAITING, IN_USE = "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"


def _buckets(name: str, labels: str, low: str, high: str) -> dict[str, str]:
    """A histogram whose observations lie in (0.1, 5]: `low` those up to 0.1, `high` all of them."""
    return {
        f'{name}{{{labels},le="0.1"}}': low,
        f'{name}{{{labels},le="5"}}': high,
        f'{name}{{{labels},le="+Inf"}}': high,
    }


QUIET, BUSY = "0+0x60", "0+60x60"

CANARY = 'namespace="llm-d",unit="gpt",role="decode",server="gpt-decode-0"'
ANSWERS = f"llmd_oke_canary_answers_total{{{CANARY},outcome="

SERIES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "CanaryAnswersDiffer": (
        {f'{ANSWERS}"different"}}': "0+2x60", f'{ANSWERS}"same"}}': "5+0x60"},
        {f'{ANSWERS}"different"}}': "1+0x60", f'{ANSWERS}"same"}}': "0+2x60"},
    ),
    "CanaryHandsNothingOver": (
        {f'{ANSWERS}"nothing handed over"}}': "0+2x60"},
        {f'{ANSWERS}"nothing handed over"}}': "5+0x60", f'{ANSWERS}"same"}}': "0+2x60"},
    ),
    "CanarySlow": (
        {f"llmd_oke_canary_answer_seconds{{{CANARY}}}": "8x60"},
        {f"llmd_oke_canary_answer_seconds{{{CANARY}}}": "0.3 8 0.3 0.3 8 0.3x55"},
    ),
    "CanaryStopped": (
        {},
        {'llmd_oke_canary_round_timestamp_seconds{namespace="llm-d"}': "1x60"},
    ),
    "CanaryFails": (
        {f'{ANSWERS}"failed"}}': "0+2x60", f'{ANSWERS}"same"}}': "5+0x60"},
        {f'{ANSWERS}"failed"}}': "1+0x60", f'{ANSWERS}"same"}}': "0+2x60"},
    ),
    "PrefillFallbackToDecodeOnly": (
        {f'{DECISIONS}"decode-only"}}': "0+90x60", f'{DECISIONS}"prefill-decode"}}': "0+10x60"},
        {f'{DECISIONS}"decode-only"}}': "0+10x60", f'{DECISIONS}"prefill-decode"}}': "0+90x60"},
    ),
    "KvTransferNotOverRdma": (
        {
            f"vllm:nixl_bytes_transferred_sum{TRANSFERS}": "0+1e9x60",
            f"vllm:nixl_xfer_time_seconds_sum{TRANSFERS}": "0+1x60",
        },
        {
            f"vllm:nixl_bytes_transferred_sum{TRANSFERS}": "0+2e10x60",
            f"vllm:nixl_xfer_time_seconds_sum{TRANSFERS}": "0+1x60",
        },
    ),
    "KvTransferFailures": (
        {f"vllm:nixl_num_failed_transfers_total{TRANSFERS}": "0+1x60"},
        {f"vllm:nixl_num_failed_transfers_total{TRANSFERS}": "5+0x60"},
    ),
    "KvTransferExpired": (
        {f"vllm:nixl_num_kv_expired_reqs_total{TRANSFERS}": "0+1x60"},
        {f"vllm:nixl_num_kv_expired_reqs_total{TRANSFERS}": "5+0x60"},
    ),
    "KvReleaseNotTold": (
        {f"vllm:nixl_num_failed_notifications_total{TRANSFERS}": "0+1x60"},
        {f"vllm:nixl_num_failed_notifications_total{TRANSFERS}": "5+0x60"},
    ),
    "KvCacheStranded": (
        {f"{IN_USE}{PREFILL}": "0.2x60", f"{RUNNING}{PREFILL}": "0x60", f"{WAITING}{PREFILL}": "0x60"},
        {f"{IN_USE}{PREFILL}": "0.2x60", f"{RUNNING}{PREFILL}": "0 0 1x58", f"{WAITING}{PREFILL}": "0x60"},
    ),
    "KvTransferSlow": (
        _buckets("vllm:nixl_xfer_time_seconds_bucket", POD, QUIET, BUSY),
        _buckets("vllm:nixl_xfer_time_seconds_bucket", POD, BUSY, BUSY),
    ),
    "Preemptions": (
        {f"vllm:num_preemptions_total{DECODE}": "0+60x60"},
        {f"vllm:num_preemptions_total{DECODE}": "0+1x60"},
    ),
    "QueueAgainstSlo": (
        _buckets("vllm:request_queue_time_seconds_bucket", f'{POD},llm_d_ai_role="prefill"', QUIET, BUSY),
        _buckets("vllm:request_queue_time_seconds_bucket", f'{POD},llm_d_ai_role="prefill"', BUSY, BUSY),
    ),
    "PrefillDecodeImbalance": (
        {f"{WAITING}{PREFILL}": "9x60", f"{WAITING}{DECODE}": "0x60", f"{IN_USE}{DECODE}": "0.1x60"},
        {f"{WAITING}{PREFILL}": "9x60", f"{WAITING}{DECODE}": "9x60", f"{IN_USE}{DECODE}": "0.9x60"},
    ),
    "GpuEccErrors": ({f"gpu_ecc_uncorrect_total{GPU}": "3x60"}, {f"gpu_ecc_uncorrect_total{GPU}": "0x60"}),
    "GpuXgmiErrors": ({f"gpu_ecc_uncorrect_xgmi_wafl{GPU}": "3x60"}, {f"gpu_ecc_uncorrect_xgmi_wafl{GPU}": "0x60"}),
    "GpuTooHot": ({f"gpu_junction_temperature{GPU}": "105x60"}, {f"gpu_junction_temperature{GPU}": "70x60"}),
    "RdmaLinkDown": (
        {f"node_infiniband_physical_state_id{PORT}": "2x60"},
        {f"node_infiniband_physical_state_id{PORT}": "5x60"},
    ),
    "RdmaCongestion": (
        {f"node_infiniband_port_transmit_wait_total{PORT}": "0+1e9x60"},
        {f"node_infiniband_port_transmit_wait_total{PORT}": "0+1e3x60"},
    ),
    "CertificateExpires": (
        {'envoy_server_days_until_first_cert_expiring{namespace="llm-d",pod="door"}': "3x60"},
        {'envoy_server_days_until_first_cert_expiring{namespace="llm-d",pod="door"}': "60x60"},
    ),
    "PickerWithoutLeader": (
        {f'envoy_cluster_membership_healthy{{{POD},envoy_cluster_name="ext_proc"}}': "0x60"},
        {f'envoy_cluster_membership_healthy{{{POD},envoy_cluster_name="ext_proc"}}': "1x60"},
    ),
    "DecodeRestartsAfterPrefill": (
        {f'{RESTARTS}"gpt-decode-a"}}': "0+1x60", f'{RESTARTS}"gpt-prefill-a"}}': "0+1x60"},
        {f'{RESTARTS}"other-decode-a"}}': "0+1x60", f'{RESTARTS}"gpt-prefill-a"}}': "0+1x60"},
    ),
    "NodeFailedAcceptance": (
        {'kube_node_spec_taint{node="node",key="llmd-oke/acceptance",effect="NoSchedule"}': "1x60"},
        {'kube_node_spec_taint{node="node",key="amd.com/gpu",effect="NoSchedule"}': "1x60"},
    ),
    "StackNotScraped": (
        {
            f"vllm:num_requests_running{DECODE}": "0x10",
            'llm_d_epp_ready_endpoints{namespace="llm-d",service="gpt-epp"}': "4x60",
        },
        {
            f"vllm:num_requests_running{DECODE}": "0x60",
            'llm_d_epp_ready_endpoints{namespace="llm-d",service="gpt-epp"}': "4x60",
        },
    ),
    "NodeFailsChecks": (
        {'oke_npd_check_status_code{instance="node",check="gpu-count"}': "1x60"},
        {'oke_npd_check_status_code{instance="node",check="gpu-count"}': "0x60"},
    ),
    "NodeChecksStopped": (
        {'oke_npd_check_last_run_timestamp_seconds{instance="node",check="gpu-count"}': "-3601x60"},
        {'oke_npd_check_last_run_timestamp_seconds{instance="node",check="gpu-count"}': "0+60x60"},
    ),
}
"""By alert: the series of a fault, and those without it. `0+60x60`: 0, 60, 120 …, a value a minute for an hour."""
