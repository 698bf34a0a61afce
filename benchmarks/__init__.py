"""Speed and training, measured on green contracts. Each file runs with `python -m benchmarks.<name>`."""
