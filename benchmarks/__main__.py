"""python -m benchmarks: all of them."""

from benchmarks import batch, page, sweep

batch.main()
sweep.main()
page.main()
