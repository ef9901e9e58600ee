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


class WithArguments:
    def __init__(self, engine):
        self.engine = engine


class WithoutDevice(Provider):
    def sampler(self):
        raise OSError("no device here")


def three_arguments(logits, temperature, seeds):
    return largest(logits, temperature, seeds, seeds)


class ThreeArguments(Sampler):
    sample = staticmethod(three_arguments)


sampler = Sampler()
provider = Provider()
