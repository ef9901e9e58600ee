"""The sampler's kernels in Triton's own interpreter, and compiled for the CPU: the same bits."""

from mrv2.checks import triton_cpu
from mrv2.refrunner.api import NewRequest, SamplingParams

from .sampling_cases import make_bench, make_logits

EVERYTHING = SamplingParams(
    temperature=0.7, seed=3, top_k=9, top_p=0.8, min_p=0.01, repetition_penalty=1.3, frequency_penalty=0.2,
    logit_bias=((3, 1.0),), allowed_token_ids=tuple(range(30)), bad_words=((5, 6), (1, 2, 5, 7)), min_tokens=9,
    stop_token_ids=(2,), logprobs=3, logprob_token_ids=(4,),
)  # fmt: skip
REQUESTS = [NewRequest("a", (1, 2, 5), 2, EVERYTHING), NewRequest("b", (4,), 1, SamplingParams(logprobs=-1))]


def test_the_interpreter_agrees_with_the_compiler():
    logits = make_logits("normal", 2, 33, 5)
    interpreted = make_bench(REQUESTS, 33, logprobs_mode="processed_logprobs").sample(logits)
    with triton_cpu.enabled() as session:
        compiled = make_bench(REQUESTS, 33, logprobs_mode="processed_logprobs").sample(logits)
    assert session.findings == []
    assert interpreted.sampled.result[0].tolist() == compiled.sampled.result[0].tolist()
    assert interpreted.logprobs.tolist() == compiled.logprobs.tolist()
    asked = [(3, 1), (-1, 0)]
    assert interpreted.report.entries(asked) == compiled.report.entries(asked)
