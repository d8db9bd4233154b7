"""What the tests share: hypothesis profiles, random models without ones and zeros, sentences, and ways to compare.

Sizes are pairwise distinct wherever they meet, so that a swapped axis cannot pass.
"""

import logging
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from command_helpers import tiny_flags, write_corpus
from hypothesis import settings
from torch import Tensor, nn

from minitrans import cli
from minitrans.cachecheck.measurement import Report
from minitrans.model.transformer import Transformer, TransformerConfig
from minitrans.translate import backend
from minitrans.translate.translator import Translator
from minitrans.verify import run_checks  # which registers all checks and sabotages

for name, n in (("few", 25), ("many", 100)):  # examples; `make test-all` asks for many
    settings.register_profile(name, deadline=None, max_examples=n, derandomize="CI" in os.environ)
settings.load_profile("few")

torch.set_num_threads(1)  # the tensors are tiny, and threads that wait for each other on a busy machine take minutes
if "PYTEST_XDIST_WORKER" in os.environ:  # for the same reason, in the commands that tests start beside each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

COLOR_VARIABLES = {"FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "PY_COLORS"}  # of rich and pytest
for name in [*os.environ]:  # what a terminal, a proxy or a cluster sets
    if name in COLOR_VARIABLES or name.lower() == "http_proxy" or name.startswith("SLURM_"):
        del os.environ[name]
os.environ["TERM"] = "xterm"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job; what tests start would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

PAD, BOS, EOS = 3, 5, 1  # neither 0 nor in order, so that no fault hides behind a usual value
ATOL = 1e-12  # float64

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def generator(seed: int) -> torch.Generator:
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


TINY_CONFIG = TransformerConfig(
    vocab_size=11, pad_id=PAD, bos_id=BOS, eos_id=EOS, d_model=6, n_heads=2, d_head=4, d_ff=13, n_layers=2, max_len=17,
    dropout=0.0,
)  # fmt: skip


def random_model(seed: int, **settings: Any) -> Transformer:
    """A tiny float64 model in eval mode, without dropout, every parameter random; with these settings."""
    return randomize(Transformer(replace(TINY_CONFIG, **settings)), seed)


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


def random_tgt_in(seed: int, batch: int, length: int) -> Tensor:
    """int64 (B, T): BOS, then random real tokens."""
    ids = random_ids(seed, [length] * batch, length)
    ids[:, 0] = BOS
    return ids


def worst_deviation(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    """The largest difference between any two corresponding elements; infinite if one of them is NaN."""
    worst = 0.0
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        if one.numel():
            worst = max(worst, (one - other).abs().nan_to_num(nan=torch.inf).max().item())
    return worst


def force_constant_token_ranking(model: Transformer, *tokens: int) -> Transformer:
    """Make the model's likeliest tokens the same at every position, the first one the likeliest."""
    with torch.no_grad():
        model.decoder.norm.weight.zero_()
        model.decoder.norm.bias.fill_(1.0)
        model.output.weight.zero_()
        for rank, token in enumerate(tokens):
            model.output.weight[token] = 1.0 - 0.1 * rank
    return model


def assert_close(got: Sequence[Tensor], want: Sequence[Tensor], relative: float = 1e-12) -> None:
    """Assert that each is off by at most `relative` times the largest element that it should have."""
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other.double()).abs().max() <= relative * other.abs().max()


def record_calls(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[tuple[Any, ...]]:
    """The positional arguments of each call of a function or method from now on, in order."""
    calls: list[tuple[Any, ...]] = []
    original = getattr(owner, name)

    def recording(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return original(*arguments, **named)

    patch.setattr(owner, name, recording)
    return calls


@pytest.fixture(scope="session")
def fresh_model_report() -> Report:
    """What all checks measure on a fresh model."""
    return run_checks.run()


@pytest.fixture
def float64_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a user's model in float64 only; lower dtypes would take as long again, and have their own tests."""
    monkeypatch.setattr("minitrans.cachecheck.runner.LOWER_DTYPES", ())


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run trained for a few seconds on a small corpus; tests only read it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_corpus(folder, train=400, valid=12, test=15)
    run_dir = folder / "run"
    assert cli.main(["train", *tiny_flags(folder), "--run-dir", str(run_dir)]) == 0
    return run_dir


@pytest.fixture(scope="session")
def translator(tiny_run: Path) -> Translator:
    """A translator of the tiny run, with the plain model; tests do not change it."""
    return Translator.load(tiny_run)


@pytest.fixture(scope="session")
def corpus(tiny_run: Path) -> Path:
    """The folder of the corpus that `tiny_run` was trained on; its cache may be used."""
    return tiny_run.parent


@pytest.fixture(scope="session")
def sixty_pair_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus of 60 pairs, for tests in which much is translated; tests only read it."""
    folder = tmp_path_factory.mktemp("few")
    write_corpus(folder, train=60, valid=8, test=8)
    return folder


@pytest.fixture(scope="module")
def offline_cwd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty working folder, without a network, because damaged files may name any address."""
    folder = tmp_path_factory.mktemp("offline_cwd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.chdir(folder)
        yield folder


TESTS_DIR = Path(__file__).parent
MODEL_TEST_PATHS = {"model", "compiled", "verify", "translate/test_backend.py"}
# The files that take longest, in this order: a process that begins one at the end keeps all others waiting.
SLOWEST_FILES = [
    *("verify/test_self_test.py", "verify/test_checks.py", "training/test_multi_process.py", "server/test_serve.py"),
    *("test_model_edits.py", "training/test_checkpoints.py", "training/test_settings.py", "training/test_run.py"),
    *("cachecheck/test_cachecheck.py", "cachecheck/test_hugging_face.py", "test_cli.py", "scripts/test_make_corpus.py"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the model, and give a slow one more time; the slowest files come first."""
    for item in items:
        place = item.path.relative_to(TESTS_DIR)
        if MODEL_TEST_PATHS & {str(place), *map(str, place.parents)}:
            item.add_marker("model")
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
    places = {TESTS_DIR / name: place for place, name in enumerate(SLOWEST_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


# -- Compiled code: where it is available, a test that takes the plain path instead has to say so --------------------

COMPILER_COMMAND = os.environ.get("CXX", "").strip() or next(filter(shutil.which, ("c++", "g++", "clang++")), "false")
OPENMP_COMMAND = f"{COMPILER_COMMAND} -fopenmp -fsyntax-only -include omp.h -xc++ /dev/null 2> /dev/null"
HAS_COMPILED_FOLDER = find_spec("minitrans.compiled") is not None
CAN_COMPILE = HAS_COMPILED_FOLDER and os.system(OPENMP_COMMAND) == 0
collect_ignore = [] if HAS_COMPILED_FOLDER else ["compiled"]
REAL_LOG_ONCE = backend.log_once
needs_compiled = pytest.mark.skipif(not CAN_COMPILE, reason="no compiled code or no C++ compiler with OpenMP here")


@pytest.fixture
def fresh_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin as in a new process, which has loaded no compiled code, and forget what the test has loaded."""

    def forget() -> None:
        for module, name in (("training", "training_library"), ("library", "_library_or_reason")):
            getattr(import_module(f"minitrans.compiled.{module}"), name).cache_clear()

    if not HAS_COMPILED_FOLDER:
        pytest.skip("the folder minitrans/compiled is missing")
    forget()
    yield
    monkeypatch.undo()
    forget()


FLAG_BY_FEATURE = {"amx_tile": "-mno-amx-tile", "avx512_bf16": "-mno-avx512bf16", "avx": "-mno-avx"}


@pytest.fixture(params=["amx_tile", "amx_tile avx512_bf16", "amx_tile avx"])
def _lesser_processor(
    request: pytest.FixtureRequest, fresh_libraries: None, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile as for a processor with fewer instructions; the libraries are kept for later runs of the tests only."""
    library = import_module("minitrans.compiled.library")
    without = request.param.split()
    if without[-1] not in (own := library._cpu_features().split()):
        pytest.skip(f"the processor has no {without[-1]}")
    assert pytestconfig.cache is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("compiled")))
    removed = [flag for feature, flag in FLAG_BY_FEATURE.items() if feature in without and feature in own]
    monkeypatch.setenv("CXX", " ".join([COMPILER_COMMAND, *removed]))
    flags = [flag.replace("-O3", "-O1") for flag in library.CXX_FLAGS]  # in a third of the time
    monkeypatch.setattr(library, "CXX_FLAGS", flags)


@pytest.fixture(scope="session")
def plain_warnings() -> Iterator[list[str]]:
    """The warnings so far that the plain path is taken."""
    lines: list[str] = []

    def noting(level: int, message: str) -> None:
        lines.extend([message] if level >= logging.WARNING else [])
        REAL_LOG_ONCE(level, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "log_once", noting)
        yield lines


@pytest.fixture(autouse=True)
def _fail_on_plain_path(request: pytest.FixtureRequest, plain_warnings: list[str]) -> Iterator[None]:
    """Fail where the plain path is taken, unless the test asks for `allow_fallbacks`; each test logs lines anew."""
    REAL_LOG_ONCE.cache_clear()
    yield
    taken = plain_warnings.copy()
    plain_warnings.clear()
    assert not (CAN_COMPILE and taken) or "allow_fallbacks" in request.fixturenames, taken


@pytest.fixture(autouse=True)
def _kill_leftover_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the processes that a test has left running, as it does if it fails or times out."""
    started: list[subprocess.Popen[Any]] = []

    class Popen(subprocess.Popen[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

        def __exit__(self, kind: Any, *error: Any) -> None:
            if kind:  # else a test that timed out would wait for it
                self.kill()
            super().__exit__(kind, *error)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    yield
    for process in started:
        process.kill()  # which does nothing if it has ended
        process.wait()


@pytest.fixture(autouse=True)
def _restore_process_settings() -> Iterator[None]:
    """Undo what `--debug` or a test sets for the process; the tests that follow count what is logged."""
    logger = logging.getLogger("minitrans")
    level = logger.level
    yield
    logger.setLevel(level)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def allow_fallbacks(plain_warnings: list[str]) -> list[str]:
    """Let a test take the plain path; the warnings about that."""
    return plain_warnings
