"""python -m benchmarks: all of them."""

from benchmarks import batch, crowd, manifests, page, shell, steady, sweep, upload, workload

shell.main()
batch.main()
manifests.main()
sweep.main()
page.main()
crowd.main()
workload.main()
steady.main()
upload.main()
