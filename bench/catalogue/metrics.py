"""Labels and units of every metric, axis and phase."""

from harness.schema.case import STEPS
from harness.schema.catalogue import AxisEntry, MetricEntry

METRICS: tuple[MetricEntry, ...] = (
    # Statistics of the samples.
    MetricEntry("latency_ms", "Latency", "ms", "lower", text=True),
    MetricEntry("latency_ms_low", "95% low within a process", "ms"),
    MetricEntry("latency_ms_high", "95% high within a process", "ms"),
    MetricEntry("latency_ms_repeats_low", "95% low over processes", "ms"),
    MetricEntry("latency_ms_repeats_high", "95% high over processes", "ms"),
    MetricEntry("process_spread", "Spread between processes", "%", "lower", scale=0.01),
    MetricEntry("us_per_token", "Latency per token", "µs", "lower", text=True),
    MetricEntry("time_to_first_token_ms", "Time to first token", "ms", "lower", text=True),
    MetricEntry("time_to_first_token_ms_low", "95% low of TTFT", "ms"),
    MetricEntry("time_to_first_token_ms_high", "95% high of TTFT", "ms"),
    MetricEntry("time_between_tokens_ms", "Inter-token latency", "ms", "lower", text=True),
    MetricEntry("time_between_tokens_ms_low", "95% low of ITL", "ms"),
    MetricEntry("time_between_tokens_ms_high", "95% high of ITL", "ms"),
    MetricEntry("itl_p50_ms", "Inter-token latency, median", "ms", "lower"),
    MetricEntry("itl_p99_ms", "Inter-token latency, 99th percentile", "ms", "lower"),
    MetricEntry("ttft_p99_ms", "Time to first token, 99th percentile", "ms", "lower"),
    MetricEntry("goodput", "Requests with TTFT up to 500 ms and mean ITL up to 50 ms", "1/s", "higher"),
    MetricEntry("itl_worst_over_mean", "Longest step over mean step", "", "lower"),
    MetricEntry("tokens_per_s", "Throughput", "tokens/s", "higher"),
    MetricEntry("tokens_per_s_each", "Interactivity", "tokens/s per sequence", "higher"),
    MetricEntry("peak_memory_gb", "Peak memory", "GB", "lower"),
    # Work against the highest measured peaks of the run.
    MetricEntry("tflops", "Compute throughput", "TFLOP/s", "higher"),
    MetricEntry("flops_per_token", "Work per token", "GFLOP", "lower", scale=1e9),
    MetricEntry("flops_share", "Model FLOPs utilization", "%", "higher", scale=0.01),
    MetricEntry("gbs", "Effective bandwidth", "GB/s", "higher"),
    MetricEntry("lower_bound_ms", "Lower bound", "ms"),
    MetricEntry("lower_bound_share", "Share of lower bound", "", "higher", text=True),
    MetricEntry("copy_share", "Share of peak bandwidth", "", "higher"),
    # From the record.
    MetricEntry("energy_j_per_token", "Energy per token", "mJ", "lower", scale=1e-3),
    MetricEntry("tokens_per_j", "Tokens per joule", "", "higher"),
    MetricEntry("state_bytes", "State", "MB", "lower", scale=1e6),
    MetricEntry("total_variation_mean", "Total variation, mean", "", "lower"),
    MetricEntry("total_variation_max", "Total variation, largest", "", "lower"),
    MetricEntry("argmax_disagreement", "Argmax disagreement", "", "lower"),
)

AXES: tuple[AxisEntry, ...] = (
    AxisEntry("context", "Context length (tokens)", "context {}"),
    AxisEntry("batch", "Batch size (sequences)", "batch {}"),
    AxisEntry("size", "Size", "{}"),
    AxisEntry("model_size", "Model size (million parameters)", "{} million parameters"),
    AxisEntry("tokens_per_s_each", "Interactivity (tokens/s per sequence)", "{} tokens/s per sequence"),
    AxisEntry("dtype", "Dtype", "{}"),
    AxisEntry("state_dtype", "State dtype", "state {}"),
    AxisEntry("timing", "Timing", "timing {}"),
    AxisEntry("l2", "L2", "L2 {}"),
    # Options of a case; a case does not store options at their default.
    AxisEntry("scope", "Scope", "a {}", "model"),
    AxisEntry("mini_batch", "Mini-batch size (tokens)", "mini-batch {}", 16),
    AxisEntry("backbone", "Backbone", "{} backbone", "mamba"),
    AxisEntry("checkpoint", "Checkpoint", "checkpoint {}", ""),
    AxisEntry("form", "Form", "{} form", "dual"),
    AxisEntry("part", "Part", "{}", ""),
    AxisEntry("steps", "New tokens", "{} new tokens", STEPS),
    AxisEntry("rate", "Requests per second", "{} requests/s"),
    AxisEntry("compare", "Compared with", "compared with {}", ""),
    AxisEntry("positions", "Positions in the mini-batch", "{} positions"),
    AxisEntry("block_size", "Tokens per cache block", "blocks of {} tokens"),
    AxisEntry("max_num_batched_tokens", "Tokens per step", "steps of {} tokens"),
    AxisEntry("graphs", "Graph sizes", "graph sizes {}"),
    AxisEntry("attention", "Attention", "attention {}"),
    AxisEntry("model_runner", "Model runner", "model runner {}"),
    AxisEntry("cuda_graphs", "CUDA graph mode", "CUDA graphs {}"),
)

OPTION_DEFAULTS = {axis.name: axis.default for axis in AXES if axis.default is not None}

PHASE_LABELS: tuple[tuple[str, str], ...] = (("forward", "Forward"), ("generate", "Generate"), ("request", "Request"))
