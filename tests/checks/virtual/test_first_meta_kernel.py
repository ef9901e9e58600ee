"""The first meta kernel of a process changes no lifetime: what it imports holds nobody's frames."""

import os
import subprocess
import sys

PROGRAM = """
import torch
from mrv2.checks.virtual import virtual_device

def masks():
    for size in (550, 551):  # above what is tried on stand-ins
        mask = torch.ones(size, size, device="cuda", dtype=torch.bool).tril()
    return mask

with virtual_device("late"):
    for _run in range(2):
        masks()
        torch.cuda.synchronize()
        print(torch.cuda.memory_allocated())
"""


def test_the_first_run_frees_what_the_second_frees():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=os.environ, check=True)
    assert ran.stdout.split() == ["0", "0"]
