import pytest
import torch
from conftest import LIVELY_SEED, decoding_model, decoding_sources

from minitrans.model.decoding import CachedStepper, beam_search, greedy_decode
from minitrans.serving.greedy import scored_greedy_decode


def test_it_decodes_greedily_and_adds_up_the_log_probabilities() -> None:
    """Rows that end at different steps, by EOS or at their limit."""
    stepper, sources = CachedStepper(decoding_model(LIVELY_SEED)), decoding_sources(LIVELY_SEED)
    found = scored_greedy_decode(stepper, sources)
    assert [ids for ids, _ in found] == greedy_decode(stepper, sources)
    searched = [hypotheses[0] for hypotheses in beam_search(stepper, sources, 1)]
    assert [ids for ids, _ in found] == [hypothesis.ids for hypothesis in searched]
    want = torch.tensor([hypothesis.log_prob for hypothesis in searched])
    assert [log_prob for _, log_prob in found] == pytest.approx(want.tolist(), rel=1e-5)
