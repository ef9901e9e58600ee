"""The hooks on real CUDA; see README.md of this folder."""
