"""The tuner without a stack, on GPUs that the kit knows by their data alone."""

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_bench.files import read_rows, write_rows
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_tuner import search_inputs
from llmd_tuner.latency import least_step_s
from llmd_tuner.latency_models import latency_model_of
from stack_files import existing_pool, model, stack, write
from tuning_for_tests import FIGURES, MODEL, answer_of, bounds_of, prompts_row, row, run, steps_row

GPT = ["--model", "gpt-oss-120b", "--gpus", "16", "--slo", "ttft=2000,itl=25,qps=20"]
MI325X = search_inputs.known_gpu("MI325X")


def refusal(*arguments):
    error = run(*arguments).exception
    assert isinstance(error, KitError)
    return f"{error.message} {error.remedy}"


def test_tune_rank_on_a_gpu_with_fitted_latency_figures_gives_a_forecast():
    result = answer_of("rank", *GPT, "--gpu", "h200")
    assert (result["gpu"], result["shape"]) == ("H200", None)
    assert result["confidence"]["basis"] == "calibrated"
    assert result["confidence"]["beyond"] == []
    assert result["best"]["usd_per_million_output_tokens"] > 0


def test_tune_rank_limits_batches_to_those_measured_on_the_chosen_gpu():
    result = answer_of("rank", *GPT, "--gpu", "H100")
    assert max(item["max_num_seqs"] for item in result["first"]) <= 64


@pytest.mark.usefixtures("_without_sensitivity")
def test_tune_rank_shows_no_price_for_a_gpu_without_a_list_price():
    asked = ("rank", *GPT, "--gpu", "MI325X", "--allow-extrapolation")
    shown = run(*asked).stdout
    assert "no forecasts: bound: decode not measured, prefill not measured" in shown
    assert "no $, as OCI lists no price of MI325X" in shown.replace("\n", " ")
    assert answer_of(*asked)["best"]["usd_per_million_output_tokens"] is None


def test_tune_plot_marks_hardware_bounds_as_no_forecasts(tmp_path):
    page = tmp_path / "plot.html"
    assert run("plot", *GPT, "--gpu", "MI325X", "--allow-extrapolation", "--html", str(page)).exit_code == 0
    assert "No forecasts: bound" in page.read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*GPT, "--gpu", "H200", "--shape", "BM.GPU.MI300X.8"], "--shape BM.GPU.MI300X.8 or --gpu H200"),
        (["--stack", "some", "--gpu", "H200"], "name --model instead of --stack"),
        ([*GPT, "--gpu", "H300"], "GPUs: H100, H200, MI300X, MI325X, MI355X"),
        ([*GPT, "--gpu", "MI325X"], "nothing was fitted"),
    ],
)
def test_tune_rank_refuses_unknown_or_unfitted_gpus_and_options_against_them(tmp_path, words, told):
    assert told in refusal("rank", *words, *(["--project", str(tmp_path)] if "--stack" in words else []))


def test_latency_figures_of_another_gpu_are_refused_with_the_option_for_it(tmp_path):
    figures = tmp_path / "fit.yaml"
    assert run("fit", "--published", "--model", "gpt-oss-120b", "--gpu", "H200", "-o", str(figures)).exit_code == 0
    assert "--gpu H200" in refusal("rank", *GPT, "--figures", str(figures))


def test_tune_apply_refuses_a_gpu_on_which_the_model_was_never_measured(tmp_path):
    pool = existing_pool(shape="BM.GPU.MI355X-v1.8", size=1)
    write(tmp_path, "small", stack(model("agg-tp1-8r"), gpuPools=[pool]))
    told = refusal("apply", "--stack", "small", "--project", str(tmp_path), "--allow-extrapolation")
    assert "Nothing is measured of gpt-oss-120b on MI355X" in told


def measured(step_share, size, batch):
    """A decode row of MI325X whose step takes so much of the least that its hardware allows."""
    step_s = least_step_s(bounds_of(MODEL, MI325X), batch, 4224, size) * step_share
    return steps_row(size, batch, step_s, gpu="MI325X", input_tokens=4096)


def test_tune_import_rejects_rows_above_the_hardware_bound_of_their_own_gpu(tmp_path):
    source, target = tmp_path / "runs.jsonl", tmp_path / "rows.jsonl"
    write_rows([measured(0.9, 1, 32), measured(1.5, 1, 32)], source)
    result = run("import", str(source), "-o", str(target))
    assert "above the hardware's bound" in result.stderr
    assert len(read_rows(target)) == 1


def test_tune_import_keeps_rows_of_an_unknown_gpu_and_warns_of_it(tmp_path):
    source = tmp_path / "runs.jsonl"
    write_rows([row(gpu="B200", output_tokens_per_s=1000)], source)
    result = run("import", str(source), "-o", str(tmp_path / "rows.jsonl"))
    assert "B200 is no GPU of the catalogue" in result.stderr


def test_latency_figures_fitted_to_rows_of_another_gpu_are_usable_by_tune_rank(tmp_path):
    rows, figures = tmp_path / "rows.jsonl", tmp_path / "fit.yaml"
    decode = [measured(2.0, size, batch) for size in (1, 2) for batch in (4, 32, 128)]
    prefill = [
        prompts_row(size, gpu="MI325X", achieved_requests_per_s=rate) for size, rate in ((1, 4.0), (2, 6.0), (4, 8.0))
    ]
    write_rows([*decode, *prefill], rows)
    assert run("fit", str(rows), "-o", str(figures)).exit_code == 0
    result = answer_of("rank", *GPT, "--gpu", "MI325X", "--figures", str(figures), "--workload", "4000/256")
    assert result["confidence"]["basis"] == "calibrated"
    assert result["best"]["topology"]


def test_the_topology_of_llm_ds_guide_for_h200_is_on_the_throughput_frontier():
    """llm-d guides, pd-disaggregation: 8p-tp1-2d-tp4 on 16 H200, 5000 tokens in and 250 out."""
    result = answer_of("rank", "--model", "gpt-oss-120b", "--gpu", "H200", "--gpus", "16", "--workload", "5000/250")
    assert "8p-tp1-2d-tp4" in {item["topology"] for item in result["frontier"]}


def test_tune_match_accepts_published_measurements_of_a_chosen_gpu():
    assert len(answer_of("match", "--model", "gpt-oss-120b", "--published", "--gpu", "H200")) == 35


def test_the_lower_bound_of_decode_latency_assumes_full_memory_bandwidth():
    figures = known_figures(MODEL, MI325X.gpu)
    assert (figures.prefill.basis, figures.decode.basis) == (Basis.BOUND, Basis.BOUND)
    assert (figures.measured, FIGURES.measured) == (False, True)
    step_s = latency_model_of(figures, MODEL, MI325X).decode_step_s(1, 1, 1)
    read = MODEL.work.dense_weight_gb + MODEL.work.expert_weight_gb * 4 / 128
    assert step_s == pytest.approx(read / 6000, rel=0.01)


def test_all_reduce_over_nvlink_has_the_same_rate_for_two_gpus_and_for_eight():
    """All-reduce of a prompt over NVLink: a share of (tp - 1) / tp of the activations, at one rate."""
    h200 = search_inputs.known_gpu("H200")
    model = bounds_of(MODEL, h200)
    alone_s = model.prefill_s(4096)
    reduced = {size: model.server(size).prefill_s(4096) - alone_s / size for size in (2, 8)}
    assert reduced[8] / reduced[2] == pytest.approx((7 / 8) / (1 / 2))
