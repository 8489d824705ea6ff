"""`python -m benchmarks`, which `make bench` runs."""

from benchmarks.bench import main

main()
