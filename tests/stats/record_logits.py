"""Makes ``stats/smollm2_logits.safetensors``: three rows of logits of a real model, for :func:`distributions.recorded`.

Run by hand, ``python -m tests.stats.record_logits`` from the repository root, with the model installed (README.md).
"""

import torch
from safetensors.torch import save_file

from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.oracle.llama import LlamaOracle
from mrv2.stats.distributions import RECORDED

# Ids of a context; the rows after each of them differ in how sure the model is.
CONTEXT = list(range(504, 568)) + [504 + index % 5 for index in range(40)]


def main() -> None:
    """Choose the rows with the largest, the middle and the smallest entropy."""
    checkpoint = load_checkpoint("smollm2")
    logits = LlamaOracle(checkpoint.config, checkpoint.tensors).logits(CONTEXT).to(torch.bfloat16)
    log_p = logits.double().log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    order = entropy.argsort(descending=True)
    chosen = order[[0, len(order) // 2, -1]]
    save_file({"logits": logits[chosen].contiguous()}, RECORDED)
    print("entropy in nats:", [round(value, 3) for value in entropy[chosen].tolist()])


if __name__ == "__main__":
    main()
