"""What the tests share: hypothesis profiles, random models without ones and zeros, sentences, and ways to compare.

Sizes are pairwise distinct wherever they meet, so that a swapped axis cannot pass.
"""

import contextlib
import logging
import math
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minitrans import cli
from minitrans.cachecheck.check import Report
from minitrans.model.loss import ROWS, BatchLoss, label_smoothed_cross_entropy
from minitrans.model.reference import Weights
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.serving import admission
from minitrans.verify import proof  # which registers all checks and sabotages
from minitrans.verify.oracles import as_torch_state as as_torch_state
from minitrans.verify.subject import Subject, make_subject

for name, n in (("few", 25), ("many", 100)):  # examples; `make test-all` asks for many
    settings.register_profile(name, deadline=None, max_examples=n, derandomize="CI" in os.environ)
settings.load_profile("few")

torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other on a busy machine take minutes
if "PYTEST_XDIST_WORKER" in os.environ:  # for the same reason, in the commands that tests start beside each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job; what tests start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

PAD, BOS, EOS = 3, 5, 1  # neither 0 nor in order, so that no fault hides behind a usual value
ATOL = 1e-12  # float64
CORPUS = Path(__file__).parent / "corpus"  # simple sentences, of which a tiny model learns some in seconds

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def generator(seed: int) -> torch.Generator:
    """A random generator of its own for each test."""
    return torch.Generator().manual_seed(seed)


def randomize(module: AnyModule, seed: int) -> AnyModule:
    """Give a module float64 random parameters, biases and norms included, and put it in eval mode."""
    random = generator(seed)
    module.double().eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(std=0.5, generator=random)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return module


def random_model(
    seed: int,
    *,
    d_model: int = 6,
    n_heads: int = 2,
    d_head: int | None = 4,
    d_ff: int = 13,
    n_layers: int = 2,
    vocab_size: int = 11,
    max_len: int = 17,
    tie_embeddings: bool = True,
) -> Transformer:
    """A tiny float64 model in eval mode, without dropout, every parameter random."""
    config = TransformerConfig(
        vocab_size=vocab_size,
        pad_id=PAD,
        bos_id=BOS,
        eos_id=EOS,
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_head,
        d_ff=d_ff,
        n_layers=n_layers,
        max_len=max_len,
        dropout=0.0,
        tie_embeddings=tie_embeddings,
    )
    return randomize(Transformer(config), seed)


def random_tensor(seed: int, *shape: int) -> Tensor:
    """float64 standard normal."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def random_ids(seed: int, lengths: Sequence[int], width: int, vocab_size: int = 11) -> Tensor:
    """int64 (B, width): row i has `lengths[i]` random real tokens, then PAD."""
    pieces = torch.tensor([i for i in range(vocab_size) if i != PAD])
    ids = pieces[torch.randint(len(pieces), (len(lengths), width), generator=generator(seed))]
    for row, length in zip(ids, lengths, strict=True):
        row[length:] = PAD
    return ids


def random_targets(seed: int, batch: int, length: int, vocab_size: int = 11) -> Tensor:
    """int64 (B, T): BOS, then random real tokens."""
    ids = random_ids(seed, [length] * batch, length, vocab_size)
    ids[:, 0] = BOS
    return ids


def worst_deviation(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest difference between any two elements that belong together; infinite if one of them is NaN."""
    worst = 0.0
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        if one.numel():
            worst = max(worst, (one - other).abs().nan_to_num(nan=torch.inf).max().item())
    return worst


def as_numpy(module: nn.Module) -> Weights:
    """A module's weights as the NumPy reference wants them."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    """A random float64 model and ragged sentences for it, at least one of them a source with padding.

    B, S, T, d_ff and the sizes of the heads are pairwise distinct. One row, one head, heads that fill d_model and
    heads that do not, S < T and S > T, and a `max_len` that just suffices all occur.
    """
    n_heads, d_head, d_model = draw(
        st.sampled_from([(1, 12, 12), (2, 6, 12), (4, 3, 12), (1, 5, 11), (2, 3, 11), (3, 5, 13), (5, 1, 12)])
    )
    batch, src_len, tgt_len, d_ff = draw(st.permutations(sorted({*range(1, 10)} - {n_heads, d_head})))[:4]
    if src_len == 1:  # leaves no room for padding
        batch, src_len = src_len, batch
    src_lengths = draw(
        st.lists(st.integers(1, src_len), min_size=batch, max_size=batch).filter(lambda lengths: min(lengths) < src_len)
    )
    tgt_lengths = draw(st.lists(st.integers(1, tgt_len), min_size=batch, max_size=batch))
    seed = draw(st.integers(0, 2**20))
    model = random_model(
        seed,
        d_model=d_model,
        n_heads=n_heads,
        d_head=d_head,
        d_ff=d_ff,
        n_layers=draw(st.integers(1, 2)),
        max_len=max(src_len, tgt_len) + draw(st.sampled_from([0, 1, 9])),
        tie_embeddings=draw(st.booleans()),
    )
    sources, targets = random_sentences(seed + 1, src_lengths), random_sentences(seed + 2, tgt_lengths)
    subject = make_subject(model, sources, targets, [sources, sources[:1]])
    src_ids, tgt_in, tgt_out = (
        F.pad(ids, (0, width - ids.size(1)), value=PAD)
        for ids, width in ((subject.src_ids, src_len), (subject.tgt_in, tgt_len), (subject.tgt_out, tgt_len))
    )
    return replace(subject, src_ids=src_ids, tgt_in=tgt_in, tgt_out=tgt_out)


def random_sentences(seed: int, lengths: Sequence[int], vocab_size: int = 11) -> list[list[int]]:
    """Ids that are not special, one fewer than told: there will be BOS or EOS too."""
    ordinary = torch.tensor([i for i in range(vocab_size) if i not in (PAD, BOS, EOS)])
    random = generator(seed)
    return [ordinary[torch.randint(len(ordinary), (n - 1,), generator=random)].tolist() for n in lengths]


# Decoding


def always(model: Transformer, token: int) -> Transformer:
    """Make the model's likeliest token the same at every position."""
    with torch.no_grad():
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.fill_(1.0)
        model.output.weight.zero_()
        model.output.weight[token] = 1.0
    return model


# The loss from hidden states

LinearLoss = Callable[[Tensor, Tensor, Tensor, int, float], Tensor]


def plain_loss(hidden: Tensor, weight: Tensor, tgt_out: Tensor, pad_id: int, smoothing: float) -> Tensor:
    """What any way to the loss from hidden states has to equal."""
    return label_smoothed_cross_entropy(hidden @ weight.T, tgt_out, pad_id, smoothing)


def random_case(lengths: Sequence[int], padded: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (B, T, 6) and a matrix (11, 6) that want a gradient, and targets (B, T); float64."""
    length = max(lengths) + padded
    hidden, weight = random_tensor(3, len(lengths), length, 6), random_tensor(4, 11, 6)
    return hidden.requires_grad_(), weight.requires_grad_(), random_ids(5, lengths, length)


def with_gradients(
    loss_of: LinearLoss, hidden: Tensor, weight: Tensor, tgt_out: Tensor, smoothing: float = 0.1
) -> tuple[Tensor, ...]:
    """The loss, and its gradients by hidden states and matrix."""
    loss = loss_of(hidden, weight, tgt_out, PAD, smoothing)
    return loss.detach(), *torch.autograd.grad(loss, (hidden, weight))


def assert_close(got: Sequence[Tensor], want: Sequence[Tensor], relative: float = 1e-12) -> None:
    """Each is off by no more than that share of the largest element that it should have."""
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other.double()).abs().max() <= relative * other.abs().max()


def assert_equal(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Each is exactly what it should be."""
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


class Shapes(TorchDispatchMode):
    """Notes the shape of whatever any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen |= {tuple(x.shape) for x in tree_leaves(out) if isinstance(x, Tensor)}
        return out


def logits_made(loss_of: LinearLoss) -> int:
    """The most rows with as many columns as there are pieces, over loss and gradients; of 3 * ROWS positions."""
    with Shapes() as shapes:
        with_gradients(loss_of, *random_case([ROWS, ROWS, 5]))
    return max((math.prod(shape[:-1]) for shape in shapes.seen if shape and shape[-1] == 11), default=0)


@pytest.fixture(scope="session")
def fresh_report() -> Report:
    """What all checks measure on a fresh model."""
    return proof.run()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run trained for a few seconds on a small corpus; tests only read it."""
    folder = tmp_path_factory.mktemp("tiny")
    for split, n in (("train", 400), ("valid", 12), ("test", 15)):
        for language in ("en", "zh"):
            lines = (CORPUS / f"{split}.{language}").read_text(encoding="utf-8").splitlines()[:n]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run_dir = folder / "run"
    assert cli.main(["train", *tiny_settings(folder), "--run-dir", str(run_dir)]) == 0
    return run_dir


@pytest.fixture(scope="session")
def corpus(tiny_run: Path) -> Path:
    """The folder of the corpus that `tiny_run` was trained on; its cache may be used."""
    return tiny_run.parent


def tiny_settings(data: Path, max_steps: int = 200) -> list[str]:
    """Flags that train the smallest model worth the name on a folder of `train`, `valid` and `test` files."""
    settings = {
        "data.path": data,
        "data.source": "en",
        "data.target": "zh",
        "data.cache_dir": data / "cache",
        "data.batch_tokens": 400,
        "tokenizer.vocab_size": 1000,
        "tokenizer.character_coverage": 1.0,
        "model.d_model": 32,
        "model.n_heads": 2,
        "model.d_ff": 48,
        "model.n_layers": 1,
        "model.max_len": 40,
        "training.learning_rate": 0.01,
        "training.warmup_steps": 10,
        "training.ema_decay": 0.9,
        "training.checkpoint_every": 7,
        "training.precision": "fp32",  # on every machine
        "trainer.max_steps": max_steps,
        "trainer.val_check_interval": 20,
        "trainer.check_val_every_n_epoch": "null",
        "trainer.log_every_n_steps": 5,
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="session")
def few_sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 60 pairs, for tests in which much is translated; tests only read it."""
    folder = tmp_path_factory.mktemp("few")
    for split, n in (("train", 60), ("valid", 8), ("test", 8)):
        for language in ("en", "zh"):
            lines = (CORPUS / f"{split}.{language}").read_text(encoding="utf-8").splitlines()[:n]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def wait_for_the_end_of(group: int) -> None:
    """Wait for the last process of a group, half a minute at most."""
    with contextlib.suppress(ProcessLookupError):
        for _ in range(3000):
            os.killpg(group, 0)
            time.sleep(0.01)
        raise AssertionError("a process has been left behind")


# -- The ladder: every test is of one rung, after its folder or its file ----------------------------------------------

HERE = Path(__file__).parent
RUNGS = {
    "unit": ["cachecheck"],
    "model": ["model", "compiled", "verify", "test_plan.py", "test_admission.py"],
    "command": ["test_cli.py", "test_fuzz.py", "test_hostile.py", "training/test_run.py", "training/test_settings.py"],
    "end_to_end": ["test_edits.py", "training/test_processes.py", "training/test_checkpoints.py"],
}
# The files that take longest, in this order: a process that begins one at the end keeps all others waiting.
SLOWEST = [
    *("verify/test_self_test.py", "test_edits.py", "training/test_processes.py", "test_cli.py"),
    *("training/test_distillation.py", "compiled/test_kernels.py", "compiled/test_stepper.py"),
    *("training/test_checkpoints.py", "training/test_run.py"),
]


def rung(path: Path) -> str:
    """On which rung of the ladder a test file stands: unit, model, command or end_to_end."""
    parts = path.relative_to(HERE)
    names = {str(parts), *map(str, parts.parents)}
    return next((name for name, places in RUNGS.items() if names & {*places}), "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its rung; the slowest files come first, the others where they are."""
    for item in items:
        item.add_marker(rung(item.path))
    places = {HERE / name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


# -- Compiled code: where it can be there, a test in which the plain path is taken in its place says so --------------

COMPILERS = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
HAS_FOLDER = find_spec("minitrans.compiled") is not None
COMPILED = HAS_FOLDER and any(map(shutil.which, COMPILERS))
collect_ignore = [] if HAS_FOLDER else ["compiled"]
SAY_ONCE = admission.say_once
needs_compiled = pytest.mark.skipif(not COMPILED, reason="no compiled code or no C++ compiler here")


def loss_of(model: Transformer, mode: admission.Mode = "auto", dtype: torch.dtype | None = None) -> BatchLoss:
    """What computes the loss of a model's batches, where it lies and in its dtype if no other is given."""
    weight = model.output.weight
    return admission.make_batch_loss(model, mode, weight.device, dtype or weight.dtype)


@pytest.fixture
def _compiled_for_tests(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """What is compiled is kept for the next run of the tests, by its source and flags, and apart from the user's."""
    assert pytestconfig.cache is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("compiled")))


@pytest.fixture
def as_new(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, which has loaded no compiled code; and what the test has loaded is forgotten with it."""

    def forget() -> None:
        for module, name in (("kernels", "library"), ("library", "_compile")):
            getattr(import_module(f"minitrans.compiled.{module}"), name).cache_clear()

    if not HAS_FOLDER:
        pytest.skip("the folder minitrans/compiled is not there")
    forget()
    yield
    monkeypatch.undo()
    forget()


@pytest.fixture(scope="session")
def plain_lines() -> Iterator[list[str]]:
    """The warnings so far that the plain path is taken."""
    lines: list[str] = []

    def noting(level: int, message: str) -> None:
        lines.extend([message] if level >= logging.WARNING else [])
        SAY_ONCE(level, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "say_once", noting)
        yield lines


@pytest.fixture(autouse=True)
def _strictly(request: pytest.FixtureRequest, plain_lines: list[str]) -> Iterator[None]:
    """Fail where the plain path is taken, unless the test has the fixture `falls_back`; every line is new to a test."""
    SAY_ONCE.cache_clear()
    yield
    taken = plain_lines.copy()
    plain_lines.clear()
    assert not (COMPILED and taken) or "falls_back" in request.fixturenames, taken


@pytest.fixture(autouse=True)
def _as_loud_as_before() -> Iterator[None]:
    """Undo what `--debug` sets for the process: the tests that follow count what is logged."""
    logger = logging.getLogger("minitrans")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def falls_back(plain_lines: list[str]) -> list[str]:
    """Lets a test take the plain path; the warnings of it."""
    return plain_lines
