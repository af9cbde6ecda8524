"""python -m benchmarks: all of them."""

from benchmarks import batch, page, shell, sweep, upload, workload

shell.main()
batch.main()
sweep.main()
page.main()
workload.main()
upload.main()
