"""The benchmarks: the platform beside other container programs, in the same minutes."""
