"""Samplers with a fault planted in each, and the correct one that they are made from."""
