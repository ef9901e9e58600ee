"""What a user might name: a function, a class, an instance, a provider, and something else."""

import numpy as np

NUMBER = 3


def largest(logits, temperature, seeds, positions):
    return np.asarray(logits).argmax(axis=-1)


class Sampler:
    name = "mine"

    def sample(self, logits, temperature, seeds, positions):
        return largest(logits, temperature, seeds, positions)


class Provider:
    def sampler(self):
        return Sampler()


sampler = Sampler()
provider = Provider()
