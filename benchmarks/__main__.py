"""python -m benchmarks: all of them."""

from benchmarks import batch, clock, crowd, manifests, page, shell, steady, sweep, upload, workload

shell.main()
batch.main()
manifests.main()
sweep.main()
page.main()
crowd.main()
workload.main()
steady.main()
clock.main()
upload.main()
