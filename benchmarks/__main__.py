"""python -m benchmarks: all of them."""

from benchmarks import batch, page, sweep, workload

batch.main()
sweep.main()
page.main()
workload.main()
