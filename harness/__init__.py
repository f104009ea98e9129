"""How to measure: cases in, records out, each system in its own process. Knows nothing of what it measures.

A case (`case`) is planned into a job of a run (`run`, with its `catalogue`). `scheduler` hands each case
of a job to a worker (`process`, `protocol`, `warden`, `worker`); there `measured_case` builds the workload
of the system (`system`), checks it (`gate`, `inspection`), times it (`timer`, `cuda_clock`) and makes a record
(`record`), which the scheduler appends to the job's file (`record_file`). Nothing here imports torch, pandas or rich
until it needs them.
"""
