"""Mutants of order that are generated: one for each way to spoil an edge between host, streams and memory of a runner.

Found in the source by its syntax tree, whoever wrote it; judged by a battery of workloads on the virtual device.
"""
