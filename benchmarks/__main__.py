"""python -m benchmarks: all of them."""

from benchmarks import batch, page

batch.main()
page.main()
