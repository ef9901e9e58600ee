"""MRV131 on effects alone: what is shared between callers gives what the whole list of a program would give."""

import random
from dataclasses import replace

import pytest

from mrv2.checks.lint.staging import Effect, Effects, rewritten

ARMS = frozenset()


def effect(verb, buffer="a", line=0, arms=ARMS):
    return Effect(verb, None if verb == "wait" else buffer, "engine", "step", line, False, arms)


class Program:
    """Random functions that call each other: by ``Effects``, and as the list that a run of each would be."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shared, self.flat = [], []
        for _ in range(8):
            self.add_function()

    def add_function(self):
        shared, flat = Effects(), []
        for _ in range(self.random.randrange(1, 7)):
            arms = frozenset({(self.random.randrange(10**9), self.random.random() < 0.5)})
            arms = arms if self.random.random() < 0.3 else ARMS
            if self.shared and self.random.random() < 0.5:
                chosen = self.random.randrange(len(self.shared))
                shared.add_call(self.shared[chosen], arms)
                flat += [replace(one, arms=one.arms | arms) for one in self.flat[chosen]]
            else:
                verb = self.random.choice(("upload", "write", "write", "fresh", "wait"))
                one = effect(verb, self.random.choice("ab"), self.random.randrange(100), arms)
                shared.add(one)
                flat.append(one)
        self.shared.append(shared)
        self.flat.append(flat)


def written_of_a_list(order):
    """The rule as its module says it: the list comes twice."""
    pending, found = {}, set()
    for step, one in [(step, one) for step in range(2) for one in order]:
        if one.verb == "wait":
            pending.clear()
        elif one.verb == "fresh":
            pending.pop(one.buffer, None)
        elif one.verb == "upload":
            pending[one.buffer] = step, one
        elif one.buffer in pending:
            before, copied = pending[one.buffer]
            if not (before == step and copied.excludes(one)):
                found.add((one.buffer, one.line))
    return found


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_shared_effects_give_what_the_whole_list_gives(seed):
    told = 0
    for one in range(seed, seed + 50):
        program = Program(one)
        found = {(written.buffer, written.line) for _, written in rewritten(program.shared[-2:])}
        assert found == written_of_a_list(program.flat[-2] + program.flat[-1]), one
        told += len(found)
    assert told > 10


def test_ways_that_exclude_each_other_are_no_finding():
    for second, lines in ((False, []), (True, [2])):
        step = Effects()
        step.add(effect("upload", line=1, arms=frozenset({(7, True)})))
        step.add(effect("write", line=2, arms=frozenset({(7, second)})))
        assert [written.line for _, written in rewritten([step])] == lines


def test_a_function_that_is_called_often_is_kept_once():
    inner = Effects()
    for verb in ("wait", "upload", "write", "wait"):
        inner.add(effect(verb))
    for _ in range(40):  # 2 ** 40 effects, one after another
        outer = Effects()
        outer.add_call(inner, ARMS)
        outer.add_call(inner, ARMS)
        inner = outer
    assert [(copied.verb, written.verb) for copied, written in rewritten([inner])] == [("upload", "write")]


def test_stretches_without_a_wait_are_cut_at_some_length():
    inner = Effects()
    inner.add(effect("upload"))
    inner.add(effect("write", line=1))
    for node in range(20):  # each way to the same two lines is one of its own
        outer = Effects()
        outer.add_call(inner, frozenset({(node, True)}))
        outer.add_call(inner, frozenset({(node, False)}))
        inner = outer
    assert len(inner.head) == 1000 and [written.line for _, written in rewritten([inner])] == [1]
