"""The oracles agree with right code and correct weights, with nothing else, and do not depend on ours."""

import ast
import copy
import inspect
from collections.abc import Callable, Sequence

import pytest
import torch
from conftest import random_model, random_tensor
from torch import Tensor

from minitrans.cachecheck.measure import TOLERANCE, deviation, worst
from minitrans.model import reference
from minitrans.model.transformer import Transformer
from minitrans.verify import oracles
from minitrans.verify.oracles import numpy_weights, torch_transformer
from minitrans.verify.sabotage import SABOTAGES
from minitrans.verify.subject import ModelAndPairs, model_and_id_pairs

MIN_WEIGHT_EFFECT = 1e-6  # a changed weight moves the numbers by far more than rounding does


def make_subject() -> ModelAndPairs:
    """H*Dh = D, as PyTorch has it; B = 3, S = 6, T = 5."""
    model = random_model(0, d_model=8, n_heads=2, d_head=None, tie_embeddings=False)
    return model_and_id_pairs(model, [[4, 6, 7, 0, 8], [9], [2, 2, 10]], [[7, 4], [6], [0, 9, 8, 2]], [])


@torch.no_grad()
def memory_and_logits(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """Memory and logits."""
    return [model.encode(src_ids)[0], model(src_ids, tgt_in)]


def numpy_memory_and_logits(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> list[Tensor]:
    """The same, of the first row alone, which has no padding."""
    weights, n_heads = numpy_weights(model), model.config.n_heads
    memory = reference.encode(weights, n_heads, src_ids[0].tolist())
    logits = reference.decode(weights, n_heads, memory, tgt_in[0].tolist())
    return [torch.from_numpy(memory)[None], torch.from_numpy(logits)[None]]


ORACLES = [torch.no_grad()(torch_transformer), numpy_memory_and_logits]
Oracle = Callable[[Transformer, Tensor, Tensor], Sequence[Tensor]]


@pytest.mark.parametrize("oracle", ORACLES)
def test_an_oracle_agrees_on_the_right_model_and_disagrees_on_each_changed_weight(oracle: Oracle) -> None:
    s = make_subject()
    want = oracle(s.model, s.src_ids, s.tgt_in)

    def distance(model: Transformer) -> float:
        got = memory_and_logits(model, s.src_ids, s.tgt_in)
        return worst([deviation(a[: len(b)], b) for a, b in zip(got, want, strict=True)])

    assert distance(s.model) <= TOLERANCE
    for name, weight in s.model.named_parameters():
        model = copy.deepcopy(s.model)
        changed = weight + 0.1 * random_tensor(1, *weight.shape)
        model.get_parameter(name).data = changed.detach()
        assert distance(model) > MIN_WEIGHT_EFFECT, name
    other = copy.deepcopy(s.model)
    other.positions = other.positions + 1.0
    assert all(torch.equal(a, b) for a, b in zip(oracle(other, s.src_ids, s.tgt_in), want, strict=True))


# No code is shared


def used_package_names(source: str) -> set[str]:
    """Names that a file imports from this package and uses in more than annotations."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("minitrans")]
    names = {alias.asname or alias.name for node in imports for alias in node.names}
    annotations = [node.annotation for node in nodes if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation]
    annotations += [node.returns for node in nodes if isinstance(node, ast.FunctionDef) and node.returns]
    in_annotations = {id(inner) for annotation in annotations for inner in ast.walk(annotation)}
    return {n.id for n in nodes if isinstance(n, ast.Name) and n.id in names and id(n) not in in_annotations}


@pytest.mark.parametrize("module", [oracles, reference])
def test_an_oracle_uses_names_of_ours_in_annotations_alone(module: object) -> None:
    source = inspect.getsource(module)  # type: ignore[arg-type]
    assert "import minitrans" not in source
    assert used_package_names(source) == set()


def test_control_a_use_of_ours_is_reported() -> None:
    source = "from minitrans.model.layers import EncoderLayer, dropout as d\ndef f(x: EncoderLayer): return d(x, 0.5)"
    assert used_package_names(source) == {"d"}


@pytest.mark.parametrize("oracle", ORACLES)
def test_no_sabotage_of_our_code_reaches_an_oracle(oracle: Oracle) -> None:
    s = make_subject()
    want = oracle(s.model, s.src_ids, s.tgt_in)
    for sabotage in SABOTAGES:
        with sabotage.apply_fault():
            got = oracle(s.model, s.src_ids, s.tgt_in)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), sabotage.id
