"""Codes MRV3xx, state and differences: wrong bookkeeping, or an output that is not the reference's."""

from __future__ import annotations

from ..findings import Soundness
from .entry import CodeInfo, Example

ENTRIES = (
    CodeInfo(
        code="MRV301",
        title="the oracle differs from transformers",
        soundness=Soundness.SOUND,
        rule="on the same weights and tokens the oracle's logits stay within the rounding bound of transformers'",
        why="every later comparison trusts the oracle; if it is wrong, agreement with it proves nothing",
        remedy="compare layer by layer and start at the first that differs; usual suspects are rotary layout, norm "
        "epsilon, tied embeddings and the order of the query, key and value rows in the file",
        example=Example(
            "angles = torch.cat([freqs, freqs], -1)   # halves, but the GGUF file stores interleaved pairs",
            "angles = freqs.repeat_interleave(2, -1)  # or permute the rows once, when the file is loaded",
        ),
        stage="oracle against transformers",
    ),
    CodeInfo(
        code="MRV302",
        title="the runner's token differs from the oracle's",
        soundness=Soundness.SOUND,
        rule="the same request gives the same tokens as the oracle, however it was batched, chunked or preempted",
        why="this is what a user sees: text that depends on who else is in the batch",
        remedy="look at the first wrong token of the request only; later ones follow from it. An MRV304 of the same "
        "step names the input that was wrong already",
        example=Example(
            "state.last_token[row] = 0                          # on resume: the drawn token is lost",
            "state.last_token[row] = request.token_ids[-1]      # on resume: continue from what was drawn",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV303",
        title="a logprob lies outside the bound",
        soundness=Soundness.SOUND,
        rule="the log-probability of each token is the oracle's, within the rounding bound derived for the model",
        why="a wrong logprob with the right token is a fault that greedy text never shows: stale keys in the cache, a "
        "temperature applied before the softmax, a padded lane that leaked in",
        remedy="check which lanes and cache slots attention read at this position; take logprobs from the raw logits",
        example=Example(
            "logprob = (logits / temperature).log_softmax(-1)[token]",
            "logprob = logits.log_softmax(-1)[token]  # the model's own distribution, before temperature",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV304",
        title="an input of the step differs from the step model",
        soundness=Soundness.SOUND,
        rule="positions, input_ids, slot mapping, block tables, seq_lens and rows are functions of the step history",
        why="a wrong input is the cause; wrong tokens, some steps later and only for some requests, are the symptom",
        remedy="go to the place named: the code that computes this field. The evidence has the lane, the value "
        "expected and the value found",
        example=Example(
            "slot = table[row, pos // block_size + 1] * block_size + pos % block_size",
            "slot = table[row, pos // block_size] * block_size + pos % block_size",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV305",
        title="output changed when dead memory was poisoned",
        soundness=Soundness.SOUND,
        rule="freed rows, unused KV blocks and padded lanes are never read: whatever they hold, outputs stay the same",
        why="dead memory holds another request's data; reading it is a wrong token today and a leak of text tomorrow",
        remedy="mask by the true length where the memory is read, or write the row in full when it is taken again",
        example=Example(
            "scores = q @ keys.T                                       # all slots of the last block",
            "scores = (q @ keys.T).masked_fill(slots >= seq_len, -inf)  # only what was written",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV306",
        title="a bookkeeping invariant is broken",
        soundness=Soundness.SOUND,
        rule="rows and KV blocks have exactly one owner each, and free plus used is all of them",
        why="a row with two owners mixes two requests; a row with none is lost until the process restarts",
        remedy="pair each place that takes a row or block with the one that gives it back, for finish, abort and "
        "preemption alike",
        example=Example(
            "for r in step.finished: free_row(r)",
            "for r in (*step.finished, *step.preempted): free_row(r)",
        ),
        stage="state and poison",
    ),
    CodeInfo(
        code="MRV307",
        title="the runner crashed or returned malformed output",
        soundness=Soundness.SOUND,
        rule="a runner executes every legal step and answers with the tokens and logprobs of its requests",
        why="what comes after a crash was not checked, so nothing can be said about it",
        remedy="start at the first place named, the innermost of the target's own frames; --debug shows the traceback",
        example=Example(
            "return StepOutput({r: int(t) for ...}, {})                        # a bare int, no logprobs",
            "return StepOutput({r: (int(t),) for ...}, {r: (float(p),) for ...})",
        ),
        stage="any",
    ),
    CodeInfo(
        code="MRV308",
        title="a knob that must not change output changed it",
        soundness=Soundness.SOUND,
        rule="settings such as chunk size, ring depth or padding change speed, never tokens",
        why="a result that depends on a speed setting cannot be reproduced on another machine",
        remedy="find which stage of the step reads the setting; most often padding or a chunk border leaks into a sum",
        example=Example(
            "mean = hidden.sum(0) / padded_tokens",
            "mean = hidden[:tokens].sum(0) / tokens",
        ),
        stage="runner against oracle",
    ),
    CodeInfo(
        code="MRV309",
        title="the output depends on when the device runs what",
        soundness=Soundness.SOUND,
        rule="tokens are the same in every schedule of the device that the program allows",
        why="the schedule is the load of the machine: right on an idle device, wrong on a busy one, and never again",
        remedy="repair the races that are reported with it; mrv2 explain tells of each what to write instead",
        example=Example(
            "host.copy_(tokens, non_blocking=True)\nreturn host.tolist()",
            "host.copy_(tokens, non_blocking=True); event.record()\nevent.synchronize()\nreturn host.tolist()",
        ),
        stage="races",
    ),
    CodeInfo(
        code="MRV310",
        title="a NaN reaches an argmax or argmin of a kernel",
        soundness=Soundness.SOUND,
        rule="the values that an argmax compares are numbers",
        why="comparisons with NaN are false, so the result depends on where the NaN stands, and on the order in which "
        "the machine combines lanes: a GPU was seen to return a wrong finite maximum",
        remedy="replace NaNs before the argmax, or find out where they come from",
        example=Example(
            "best = tl.argmax(score, 0)",
            "best = tl.argmax(tl.where(score == score, score, float('-inf')), 0)",
        ),
        stage="any",
    ),
    CodeInfo(
        code="MRV311",
        title="a fuzzed case went wrong",
        soundness=Soundness.SOUND,
        rule="whatever requests come, go and are preempted, and whatever the device runs first, a step does what its "
        "contract says, without a wait and without a race",
        why="such a case comes up under load, and nobody can say afterwards what had happened before",
        remedy="paste the test that comes with the finding; its script is as small as it could be made",
        example=Example(
            "self.free_rows.append(row)                      # and the step before still reads it",
            "self.free_rows.append(row, after=step_event)",
        ),
        stage="any",
    ),
)
