"""The oracle: what every request must produce, in plain PyTorch and float64, sharing no code with the runner."""
