"""How to measure: cases in, records out, each system in its own process. Knows nothing of what it measures.

For others: `case.Case`; `record.Record`, `RecordFile`, `read_records`, `RecordError`; `interval.median_interval`;
`gate.Check`, `Verdict` and its distances; `system.System`, `Workload`, `Skip`; `timer.Policy`; `runner.run_cases`,
`probe`, `Launch`, `Event`; `progress.Progress`; `environment.snapshot`; `cuda_clock.input_sets`, `l2_bytes`.
Nothing here imports torch, pandas or rich until it needs them.
"""
