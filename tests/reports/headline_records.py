"""Make up records of two or three systems; return the sentences about them on a report page."""

from dataclasses import replace

import synthetic_records as synthetic

from harness.schema.case import Case
from reports.page import findings
from reports.page.ranking import views

FAST, SLOW = ("ttt-linear", "thunderkittens"), ("transformer", "vllm")
STEP_BACKENDS = {"ttt-linear": "triton-dual", "transformer": "vllm", "mamba": "mamba-ssm"}


def forward(latencies, system="ttt-linear", backend="thunderkittens", **fields):
    """Return records at batch 16. latencies: {context: us per token}. fields: arguments of `synthetic_records.ok`."""
    return [
        synthetic.ok(
            Case(system, backend, "1.3b", "forward", 16, context), us * 16 * context / 1e3, spread=0.0, **fields
        )
        for context, us in latencies.items()
    ]


def views_of(made):
    return views(made.records, made.table, made.catalogue)


def headline_of(*records, suite="fig15-forward"):
    made = synthetic.of_suite(suite, *records)
    return findings.headline(made.table, made.catalogue, views_of(made))


def finding(*records, suite="fig15-forward"):
    made = synthetic.of_suite(suite, *records)
    return findings.finding(views_of(made)[0])


def winner(ours, theirs, **fields):
    return finding(*forward(ours), *forward(theirs, *SLOW, **fields))


def spread(latencies, wide, system="ttt-linear", backend="thunderkittens", count=30, **fields):
    order = [n * 7 % count for n in range(count)]  # 7 is coprime to each count
    return [
        replace(
            record,
            samples_ms=[record.samples_ms[0] * (1 + wide * (2 * n / (count - 1) - 1)) for n in order],
            throttled=[False] * count,
        )
        for record in forward(latencies, system, backend, **fields)
    ]


def stepped(system, latencies, lost=(), **fields):
    backend = STEP_BACKENDS[system]
    cases = {
        batch: Case(system, backend, "1.3b", "generate", batch, 2048, timing="graph") for batch in (*latencies, *lost)
    }
    records = [synthetic.ok(cases[batch], ms, spread=0.0, **fields) for batch, ms in latencies.items()]
    return [*records, *(synthetic.lost(cases[batch], "oom", "no memory") for batch in lost)]


def throughput(*records):
    return finding(*records, suite="fig20-throughput")
