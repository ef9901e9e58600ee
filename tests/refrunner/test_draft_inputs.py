"""What a draft model computes: tokens, positions, slots and states of its lanes, against a plain account of them."""

import random
from contextlib import contextmanager

import pytest
import torch

from mrv2.checks import triton_cpu
from mrv2.refrunner.errors import CheckpointError
from mrv2.refrunner.kernels.drafting import keep_states, prepare_draft_inputs, states_before
from mrv2.refrunner.models.checkpoint import load_checkpoint
from mrv2.refrunner.models.llama import LlamaModel
from mrv2.refrunner.speculation.draft_models import EagleHead

WIDTH, BLOCK_SIZE, LENGTH, BLOCKS, ROWS = 5, 4, 40, 10, 9


def ints(values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


class Case:
    """Requests after a step, as the kernels see them: some decode, with drafts, some are in their prefill."""

    def __init__(self, seed, lanes=None):
        self.draw = draw = random.Random(seed)
        self.count = draw.randrange(1, 5)
        self.rows = draw.sample(range(ROWS), self.count)
        self.computed_before, self.lengths, self.drafts, self.emitted, self.lanes = [], [], [], [], []
        for _ in range(self.count):
            decodes = draw.random() < 0.6 or lanes is not None
            before = draw.randrange(3, 20) if decodes else draw.choice((0, 5))
            drafts = draw.randrange(4) if decodes else 0
            length = 1 + drafts if decodes else draw.randrange(1, 8)
            emitted = draw.randrange(1, drafts + 2) if decodes else draw.randrange(2)
            self.computed_before.append(before)
            self.lengths.append(length)
            self.drafts.append(drafts)
            self.emitted.append(emitted)
            self.lanes.append(lanes or (2 if decodes else length + (emitted > 0)))
        self.computed = [
            before + length - drafts + max(emitted - 1, 0)
            for before, length, drafts, emitted in zip(
                self.computed_before, self.lengths, self.drafts, self.emitted, strict=True
            )
        ]
        self.enters = [int(before in (0, 5)) for before in self.computed_before]
        self.blocks = [draw.randrange(1, BLOCKS + 1) for _ in self.rows]

    def ends(self, ahead):
        """Where each request's lanes end."""
        pairs = zip(self.computed, self.emitted, strict=True)
        return [computed + 1 + ahead if emitted else computed for computed, emitted in pairs]


def starts(lengths):
    return ints([sum(lengths[:index]) for index in range(len(lengths) + 1)])


@contextmanager
def running(interpreted):
    """Kernels compiled for the CPU, with every access checked; or in Triton's interpreter. Yields seeds to try."""
    if interpreted:
        yield range(2)
        return
    with triton_cpu.enabled() as session:
        yield range(30)
    assert session.findings == []


@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(("ahead", "lanes", "padding"), [(0, None, 0), (0, 2, 3), (2, 1, 2)])
def test_tokens_positions_and_slots(ahead, lanes, padding, interpreted):
    with running(interpreted) as seeds:
        for seed in seeds:
            case = Case(seed, lanes)
            table = torch.randint(1, 99, (case.count + padding, BLOCKS), dtype=torch.int32)
            tokens = torch.randint(0, 99, (ROWS, LENGTH), dtype=torch.int32)
            computed, total = torch.zeros(ROWS, dtype=torch.int32), torch.zeros(ROWS, dtype=torch.int32)
            computed[case.rows] = ints(case.computed)
            total[case.rows] = ints(case.computed) + 1
            requests = case.count + padding
            size = sum(case.lanes) if lanes is None else lanes * requests
            ids, positions = torch.full((size,), -9, dtype=torch.int32), torch.full((size,), -9, dtype=torch.int64)
            slots, lengths = torch.full((size,), -9, dtype=torch.int64), torch.full((requests,), -9, dtype=torch.int32)
            bounds = torch.full((requests + 1,), -9, dtype=torch.int32)
            prepare_draft_inputs[(requests,)](
                ints(case.rows), starts(case.lanes), ints(case.emitted), computed, total, tokens, LENGTH, table, BLOCKS,
                ints(case.blocks), ids, positions, slots, lengths, bounds, case.count, ahead, LENGTH,
                LANES=lanes or 0, BLOCK_SIZE=BLOCK_SIZE, BLOCK=4,
            )  # fmt: skip
            expected = []
            for index, end in enumerate(case.ends(ahead)):
                alive = case.emitted[index] > 0 or ahead == 0
                for position in range(end - case.lanes[index], end):
                    known = alive and position < LENGTH
                    kept = known and position // BLOCK_SIZE < case.blocks[index]
                    block = int(table[index, position // BLOCK_SIZE]) if kept else 0
                    slot = block * BLOCK_SIZE + position % BLOCK_SIZE if kept else -1
                    token = int(tokens[case.rows[index], position]) if known else 0
                    expected.append((token, position if known else 0, slot))
            expected += [(0, 0, -1)] * (size - len(expected))
            assert list(zip(ids.tolist(), positions.tolist(), slots.tolist(), strict=True)) == expected, seed
            assert lengths.tolist() == [*case.ends(ahead), *[0] * padding]
            assert bounds.tolist() == [*starts(case.lanes).tolist(), *[sum(case.lanes)] * padding]


@pytest.mark.parametrize("interpreted", [False, True])
def test_states_are_those_of_the_token_before(interpreted):
    """The state of position p of the request in row r is 100 r + p, in every column; the one before the first is 0."""
    with running(interpreted) as seeds:
        for seed in seeds:
            case = Case(seed)
            hidden, kept = [], torch.full((ROWS, WIDTH), float("nan"))
            for row, before, length, enters in zip(
                case.rows, case.computed_before, case.lengths, case.enters, strict=True
            ):
                hidden += [[100.0 * row + before + lane] * WIDTH for lane in range(length)]
                if not enters:
                    kept[row] = 100.0 * row + before - 1
            logits = starts([1 + drafts for drafts in case.drafts])
            out = torch.full((sum(case.lanes), WIDTH), float("nan"))
            args = (starts(case.lengths), logits, ints(case.emitted))
            states_before[(case.count, 1)](
                ints(case.rows), starts(case.lanes), *args, ints(case.enters), torch.tensor(hidden), kept, out, WIDTH,
                BLOCK=8,
            )  # fmt: skip
            keep_states[(case.count, 1)](ints(case.rows), *args, torch.tensor(hidden), kept, WIDTH, BLOCK=8)
            expected = []
            for index, end in enumerate(case.ends(0)):
                for position in range(end - case.lanes[index], end):
                    entered = case.enters[index] and position == case.computed_before[index]
                    expected.append(0.0 if entered else 100.0 * case.rows[index] + position - 1)
            assert out.tolist() == [[value] * WIDTH for value in expected], seed
            for row, computed in zip(case.rows, case.computed, strict=True):
                assert kept[row].tolist() == [100.0 * row + computed - 1] * WIDTH


@pytest.mark.parametrize("shape", [None, (64, 100), (128, 64)], ids=["none", "narrow", "turned"])
def test_a_head_whose_own_projection_does_not_fit_is_refused_by_name(shape):
    target, head = load_checkpoint("tiny"), load_checkpoint("tiny-eagle")
    tensors = {name: tensor for name, tensor in head.tensors.items() if name != "fc.weight"}
    tensors |= {} if shape is None else {"fc.weight": torch.zeros(shape)}
    model = LlamaModel(target.config, target.tensors)
    with pytest.raises(CheckpointError, match=r"tensor 'fc\.weight'"):
        EagleHead(model, head.config, tensors, kernels=False)
