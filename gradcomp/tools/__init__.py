"""Tools behind the command line: benchmarks, simulations, surveys and demonstrations."""
