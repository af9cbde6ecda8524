"""python -m benchmarks: all of them."""

from benchmarks import batch, page, shell, sweep, workload

shell.main()
batch.main()
sweep.main()
page.main()
workload.main()
