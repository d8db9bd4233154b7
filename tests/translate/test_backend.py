"""What computes: compiled code where it can; elsewhere the plain model, which one line reports, or an error."""

import copy
import logging
import pickle
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REAL_LOG_ONCE, needs_compiled, random_model, randomize, worst_deviation
from loss_cases import BATCH_IDS, loss_and_gradients, make_loss
from torch import nn
from torch.nn import functional as F

from minitrans.errors import UserError
from minitrans.model.decoding import CachedStepper
from minitrans.model.loss import batch_loss
from minitrans.model.transformer import Transformer
from minitrans.translate import backend
from minitrans.translate.backend import CompiledMode, can_verify_compiled, make_stepper
from minitrans.translate.bundle import Bundle
from minitrans.translate.translator import Translator

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
FALLBACK = "takes the plain and slower path"
LINES = ["I love you.", "", "The cat is in the kitchen.", "Machine learning is fun", "He saw it."]


def training_backend(model: Transformer, mode: CompiledMode = "auto") -> str:
    """What computes the loss of a batch: compiled code or the plain model."""
    loss = make_loss(model, mode)(*BATCH_IDS, 0.1)
    assert loss.grad_fn is not None
    return "compiled" if loss.grad_fn.name() == "_LinearCrossEntropyBackward" else "plain"


def decoding_backend(model: Transformer, mode: CompiledMode = "auto") -> str:
    """What computes the steps of decoding."""
    return "plain" if isinstance(make_stepper(model, mode), CachedStepper) else "compiled"


# -- Modes ----------------------------------------------------------------------------------------------------------


@needs_compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("mode", "who"), [("auto", "compiled"), ("require", "compiled"), ("off", "plain")])
def test_the_mode_decides(mode: CompiledMode, who: str, dtype: torch.dtype, monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setattr(backend, "_backend_by_task", {})
    if mode == "off":
        monkeypatch.setattr(backend, "import_module", lambda name: pytest.fail("asked"))
    with caplog.at_level(logging.INFO, "minitrans"):
        assert training_backend(random_model(1).to(dtype), mode) == who
        assert decoding_backend(random_model(1).to(dtype), mode) == who
        assert can_verify_compiled(mode) == (who == "compiled")
    name, both = ("compiled C++", "PyTorch and compiled C++") if who == "compiled" else ("PyTorch", "PyTorch")
    computed = [f"training in {name}", f"decoding in {name}", f"verification in {both}"]
    assert backend.describe_backends() == ", ".join(computed)
    reason = ": compiled code is off" if mode == "off" else ""
    assert caplog.messages == [line + reason for line in computed]


@pytest.mark.parametrize("mode", [False, None, "no", "required"])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    with pytest.raises(ValueError, match=f"^compiled is {mode!r}; it must be auto, off or require$"):
        make_stepper(random_model(1), mode)


@needs_compiled
def test_each_task_and_reason_is_reported_once(caplog: Log, allow_fallbacks: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(backend, "_backend_by_task", {})
    model = random_model(1)
    model.encoder.register_forward_hook(lambda module, inputs, output: None)
    for ask in (training_backend, decoding_backend):
        with pytest.raises(UserError, match="encoder has a forward hook; give auto or off"):
            ask(model, "require")
    assert caplog.messages == []
    for _ in range(3):
        assert torch.equal(make_loss(model)(*BATCH_IDS, 0.1), batch_loss(model, *BATCH_IDS, 0.1))
        assert training_backend(model) == decoding_backend(model) == "plain"
    assert backend.describe_backends() == "training in PyTorch, decoding in PyTorch"
    assert [(record.name, record.levelno, record.getMessage()) for record in caplog.records] == [
        ("minitrans", logging.WARNING, f"{work} {FALLBACK}: encoder has a forward hook")
        for work in ("training", "decoding")
    ]
    caplog.clear()
    model.output.bias = nn.Parameter(torch.zeros(11).double())
    model.encoder._forward_hooks.clear()
    assert training_backend(model) == training_backend(model) == "plain"
    assert caplog.messages == [f"training {FALLBACK}: output has an unknown part bias"]
    assert caplog.messages[0] in allow_fallbacks


@needs_compiled
def test_a_model_that_is_converted_afterwards_is_refused() -> None:
    model = random_model(1).train()
    of_batch = make_loss(model, "require")
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    other = make_loss(model, "require")
    for loss, change in ((of_batch, model.train), (other, model.float)):
        change()
        with pytest.raises(RuntimeError, match=r"model, torch\.float64 on the CPU, has been converted, moved or given"):
            loss(*BATCH_IDS, 0.1)


@needs_compiled
def test_a_copy_of_model_and_loss_has_its_own_weights() -> None:
    """Such as a copy of the training module whose weights are averaged."""
    model = random_model(1).train()
    copied, of_batch = copy.deepcopy((model, make_loss(model, "require")))
    with torch.no_grad():
        copied.encoder.norm.weight.mul_(2)
    want = loss_and_gradients(make_loss(copied, "off"), copied, BATCH_IDS)
    assert worst_deviation(loss_and_gradients(of_batch, copied, BATCH_IDS), want) < 1e-11


@needs_compiled
def test_dropout_and_modes_that_change_during_training_reach_compiled_code() -> None:
    model = random_model(1, dropout=0.3, attention_dropout=0.3).train()
    of_batch = make_loss(model, "require")
    for change in (lambda: None, model.encoder.eval, lambda: setattr(model.dropout, "p", 0.6), model.eval):
        change()
        plain = loss_and_gradients(make_loss(model, "off"), model, BATCH_IDS)
        assert worst_deviation(loss_and_gradients(of_batch, model, BATCH_IDS), plain) < 1e-11


# -- Without compiled code ------------------------------------------------------------------------------------------


BROKEN_COMPILERS = [
    ({"CXX": "", "PATH": ""}, "no C++ compiler was found; install one, such as g++"),
    ({"CXX": "no-such-compiler -O1"}, "no-such-compiler cannot compile and load "),
    ({"CXX": "false"}, "false cannot compile and load "),
    ({"CXX": '"unclosed'}, "CXX is '\"unclosed', which is not a valid command (No closing quotation)"),
]


@pytest.mark.usefixtures("fresh_libraries")
@pytest.mark.parametrize(("environment", "words"), BROKEN_COMPILERS, ids=["none", "missing", "failing", "unreadable"])
def test_without_a_compiler_the_plain_model_computes(
    environment: dict[str, str], words: str, monkeypatch: Patch, caplog: Log, allow_fallbacks: list[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        assert training_backend(random_model(1).train()) == decoding_backend(random_model(1)) == "plain"
        assert not can_verify_compiled("auto")
    assert [message.split(FALLBACK)[0] for message in caplog.messages] == ["training ", "decoding ", "verification "]
    assert all(f"{FALLBACK}: {words}" in message for message in caplog.messages)
    assert not list((tmp_path / "cache").rglob("*.*"))
    for ask in (training_backend, decoding_backend):
        with pytest.raises(UserError, match="compiled code is required"):
            ask(random_model(1), "require")
    with pytest.raises(UserError, match="compiled code is required, but may not do the verification: "):
        can_verify_compiled("require")


def test_without_the_folder_the_plain_model_computes_without_a_word(monkeypatch: Patch, caplog: Log) -> None:
    monkeypatch.setitem(sys.modules, "minitrans.compiled", None)
    assert training_backend(random_model(1).train()) == decoding_backend(random_model(1)) == "plain"
    assert not can_verify_compiled("auto")
    assert caplog.messages == []
    REAL_LOG_ONCE.cache_clear()
    with caplog.at_level(logging.INFO, "minitrans"):  # for those who want to know
        decoding_backend(random_model(1))
    assert caplog.messages == [f"decoding {FALLBACK}: the folder minitrans/compiled is missing"]
    makers: list[Callable[[CompiledMode], object]] = [partial(f, random_model(1)) for f in (make_loss, make_stepper)]
    makers.append(can_verify_compiled)
    for ask in makers:
        with pytest.raises(UserError, match="the folder minitrans/compiled is missing; give auto or off"):
            ask("require")


def test_a_failed_import_in_the_folder_is_an_error(monkeypatch: Patch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    monkeypatch.setattr(backend, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="other"):
        make_stepper(random_model(1), "auto")


UNSUPPORTED_DTYPE_OR_DEVICE = [
    (lambda m: m.half(), "compiled code does not compute in torch.float16"),
    (lambda m: m.to("meta"), "compiled code is for a CPU, and the model is on meta"),
]


@needs_compiled
@pytest.mark.parametrize(("change", "words"), UNSUPPORTED_DTYPE_OR_DEVICE, ids=["float16", "meta"])
def test_an_unsupported_dtype_or_device_takes_the_plain_model_without_a_word(
    change: Callable[[Transformer], Transformer], words: str, caplog: Log
) -> None:
    model = change(random_model(1))
    assert decoding_backend(model) == "plain"
    if words.endswith("float16"):
        assert training_backend(model) == "plain"
    assert caplog.messages == []
    for ask in (training_backend, decoding_backend):
        with pytest.raises(UserError, match=words):
            ask(model, "require")


@needs_compiled
@pytest.mark.parametrize("autocast", [True, False])
def test_parameters_in_bfloat16_are_trained_by_the_plain_model(autocast: bool, caplog: Log) -> None:
    model = random_model(1).bfloat16().train()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, plain = make_loss(model)(*BATCH_IDS, 0.1), make_loss(model, "off")(*BATCH_IDS, 0.1)
    assert torch.equal(loss, plain)
    assert loss.isfinite()
    assert caplog.messages == []
    with pytest.raises(UserError, match=r"products in torch\.bfloat16 need parameters in torch\.float32"):
        make_loss(model, "require")
    assert decoding_backend(model.eval(), "require") == "compiled"


# -- The same numbers, and nothing else -----------------------------------------------------------------------------


@needs_compiled
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_the_loss_equals_the_plain_one_in_both_modes(training: bool, p: float) -> None:
    model = random_model(1, dropout=p, attention_dropout=p).train(training)
    compiled = loss_and_gradients(make_loss(model, "require"), model, BATCH_IDS)
    after = torch.get_rng_state()
    plain = loss_and_gradients(make_loss(model, "off"), model, BATCH_IDS)
    assert worst_deviation(compiled, plain) < 1e-11
    assert torch.equal(torch.get_rng_state(), after)  # equally many random numbers have been drawn
    of_batch = make_loss(model.train(not training), "require")  # the mode at each batch counts
    model.train(training)
    with torch.no_grad():
        torch.manual_seed(7)
        assert torch.equal(of_batch(*BATCH_IDS, 0.1), compiled[0])
    assert all(module.training == training for module in model.modules())


@needs_compiled
def test_the_probe_leaves_the_callers_random_state_and_modes_unchanged() -> None:
    model = random_model(1).train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    make_stepper(model.eval(), "require")
    make_loss(model.train(), "require")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert all(parameter.grad is None for parameter in model.parameters())


@needs_compiled
@pytest.mark.parametrize(
    "around", [torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")]
)
def test_the_probe_finds_no_difference_in_any_context(around: AbstractContextManager[Any]) -> None:
    model = random_model(1).float()
    with around:
        stepper = make_stepper(model, "require")
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        plain = make_loss(model, "off", dtype)(*BATCH_IDS, 0.1)
        compiled = make_loss(model, "require", dtype)(*BATCH_IDS, 0.1)
    assert compiled.item() == pytest.approx(plain.item(), rel=0.02 if dtype == torch.bfloat16 else 1e-5)
    state = stepper.begin(BATCH_IDS[0], 1)
    plain_stepper = CachedStepper(model)
    with torch.no_grad():
        want, ids = plain_stepper.next_tokens(BATCH_IDS[1][:, 0], plain_stepper.begin(BATCH_IDS[0], 1), 3)
    log_p, same = stepper.next_tokens(BATCH_IDS[1][:, 0], state, 3)
    assert torch.equal(ids, same)
    assert worst_deviation([log_p], [want]) < 1e-5


# -- A translator ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(translator: Translator) -> Bundle:
    """A random float64 model that seldom repeats the token it was just fed, so that its translations are its own."""
    sizes = {"d_model": 12, "n_heads": 2, "d_head": 5, "d_ff": 14, "n_layers": 2, "tie_embeddings": False}
    model = randomize(Transformer(replace(translator.bundle.model.config, **sizes)), 3)  # type: ignore[arg-type]
    with torch.no_grad():
        model.output.weight.sub_(2.0 * model.tgt_embedding.weight)
        model.decoder.norm.bias.zero_()
    return replace(translator.bundle, model=model)


CHANGES_AFTER_LOADING: dict[str, Callable[[Transformer, Patch], object]] = {
    "weight": lambda model, _: model.decoder.norm.weight.data.zero_(),
    "hook": lambda model, _: model.encoder.norm.register_forward_hook(lambda module, inputs, output: -output),
    "module": lambda model, _: setattr(model.decoder, "norm", nn.RMSNorm(12).double()),
    "function": lambda _, monkeypatch: monkeypatch.setattr(F, "relu", F.gelu),
}


@pytest.mark.parametrize("change", CHANGES_AFTER_LOADING)
def test_a_change_after_loading_changes_the_next_translation(change: str, bundle: Bundle, monkeypatch: Patch) -> None:
    translator = Translator(bundle)
    before = translator.translate(LINES)
    CHANGES_AFTER_LOADING[change](bundle.model, monkeypatch)
    assert translator.translate(LINES) == translator.translate(LINES, use_cache=False) != before


@needs_compiled
@pytest.mark.parametrize("mode", ["off", "require"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda translator: pickle.loads(pickle.dumps(translator))])
def test_a_copy_of_a_translator_gives_the_same_translations(
    copied: Callable[[Translator], Translator], mode: CompiledMode, bundle: Bundle
) -> None:
    translator = Translator(bundle, mode)
    translator.split_sentences = True
    other = copied(translator)
    assert (other.compiled, other.split_sentences, other.bundle is bundle) == (mode == "require", True, False)
    assert other.translate(LINES) == translator.translate(LINES)


@needs_compiled
@pytest.mark.parametrize("change", CHANGES_AFTER_LOADING)
def test_compiled_code_keeps_the_model_as_it_was_and_each_new_translator_probes_again(
    change: str, bundle: Bundle, monkeypatch: Patch, caplog: Log, allow_fallbacks: list[str]
) -> None:
    translator = Translator(bundle, "require")
    before = translator.translate(LINES)
    CHANGES_AFTER_LOADING[change](bundle.model, monkeypatch)
    assert translator.translate(LINES) == before
    assert Translator(bundle, "auto").compiled == (change == "weight")
    if change == "weight":
        assert allow_fallbacks == []
        return
    (line,) = caplog.messages
    assert line.startswith(f"decoding {FALLBACK}: ")
    with pytest.raises(UserError, match="compiled code is required, but may not do the decoding: "):
        Translator(bundle, "require")
