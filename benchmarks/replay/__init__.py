"""Search strategies compared on recorded plans, without a GPU: `python -m benchmarks.replay`."""
