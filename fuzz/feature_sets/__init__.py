"""Random traces for combinations of the runner's features, each compared with the oracle; see ``fuzz/README.md``."""
