"""Small random models of Hugging Face's architectures: which checks fail on them, and that faults are caught."""

import contextlib
import copy
import importlib
import io
import json
import math
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from command_helpers import refusal_message, run_cli
from toy_model import Toy

from minitrans.cachecheck import NotOfferedError, run, runner, self_test
from minitrans.cachecheck.cache_checks import CHECKS, step_deviation
from minitrans.cachecheck.faults import FAULTS
from minitrans.cachecheck.measurement import FLOAT64_TOLERANCE, MIN_FAULT, Report, Result, dtype_tolerance
from minitrans.cachecheck.runner import random_case

pytest.importorskip("transformers")
hugging_face = importlib.import_module("minitrans.cachecheck.hugging_face")
issue = importlib.import_module("minitrans.verify.issue_report")

# Some models count positions from the padding on, unless position_ids say otherwise; rotary angles are float32.
MASK_ALONE_CHECKS = {"padding.left-mask-alone"}
FAILING_CHECKS_BY_MODEL = {
    **{name: set() for name in ("m2m_100", "bart", "t5", "pegasus_x", "opt")},
    "gpt2": MASK_ALONE_CHECKS, "llama": MASK_ALONE_CHECKS, "mistral": MASK_ALONE_CHECKS, "gemma": MASK_ALONE_CHECKS,
}  # fmt: skip
MOST_ROUNDED_MODELS = {"t5", "llama", "mistral"}  # in lower dtypes no other comes nearer to the limits
FLOAT32_SOFTMAX_MODELS = {"llama", "mistral", "opt", "gemma"}  # their softmax, if weights are requested


@pytest.fixture(scope="module", autouse=True)
def _silence_transformers() -> None:
    hugging_face.transformers.logging.set_verbosity_error()


@torch.no_grad()
def test_generate_and_variants_run_the_model_in_the_way_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = hugging_face.small_model("opt"), {}
    for way in ("cached", "uncached", "beams", "uncached beams", "draft", "own draft"):
        look = lambda **given: (model.model.generation_config.use_cache, "assistant_model" in given)  # noqa: E731
        monkeypatch.setattr(model.model, "generate", look)
        asked[way] = model.generate(None, torch.tensor([[7, 8]]), 3, way)
    cached, uncached, draft = (None, False), (False, False), (None, True)  # None: as usual, with a cache
    assert [*asked.values()] == [cached, uncached, cached, uncached, draft, draft]
    no_weights = Mock(decoder_attentions=None, attentions=None, cross_attentions=None)
    assert model.variants["weights"]()._logits_and_weights(no_weights, 1) == [no_weights.logits]
    assert isinstance(model.variants["static"]().new_cache(None, 1, 9).cache, hugging_face.transformers.StaticCache)


@pytest.mark.parametrize("name", FAILING_CHECKS_BY_MODEL)
def test_only_the_known_checks_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in MOST_ROUNDED_MODELS:
        monkeypatch.setattr(runner, "LOWER_DTYPES", ())
    model = hugging_face.small_model(name)
    results = {result.id: result for result in run(model).checks}
    assert {id_ for id_, result in results.items() if result.failed} == FAILING_CHECKS_BY_MODEL[name]
    assert len(results["steps"].by_dtype) == (3 if name in MOST_ROUNDED_MODELS else 1)
    assert (results["weights"].tolerance == dtype_tolerance(torch.float32)) == (name in FLOAT32_SOFTMAX_MODELS)
    of_source = {"source.padding", "source.padding-token"}
    of_target = {"padding.right", "padding.left", *MASK_ALONE_CHECKS}
    lacking = of_target if model.has_source else of_source
    assert {id_ for id_, result in results.items() if not result.offered} == lacking
    if name == "llama":  # the command's test below checks gpt2's explanation
        assert "something inside is computed in float32" in results["padding.left-mask-alone"].detail


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("deepseek_v3", []),
        ("qwen3_moe", []),
        ("dbrx", []),
        ("qwen2_audio", []),  # its text decoder, though it is listed among the encoder-decoders
        ("gemma4_text", ["sliding_attention", "full_attention"]),
        ("nemotron_h", ["linear_attention", "moe", "full_attention", "mlp"]),
        ("zamba", ["linear_attention", "linear_attention", "hybrid", "hybrid"]),  # its layers share their weights
    ],
)
def test_settings_of_a_small_model_are_made_consistent(name: str, kinds: list[str]) -> None:
    model = hugging_face.small_model(name)
    assert isinstance(model, hugging_face.DecoderOnly)
    assert sum(p.numel() for p in model.model.parameters()) < hugging_face.MAX_PARAMETERS
    assert not kinds or list(model.model.config.layer_types) == kinds
    assert step_deviation(random_case(model)) <= dtype_tolerance(torch.float32)


@pytest.mark.parametrize(("name", "smaller"), [("fsmt", "src_vocab_size"), ("marian", "decoder_vocab_size")])
def test_sentences_are_made_of_ids_that_both_vocabularies_have(name: str, smaller: str) -> None:
    model = hugging_face.small_model(name, **{smaller: 31, "share_encoder_decoder_embeddings": False})
    assert 25 < model.ordinary[-1] < 31
    assert step_deviation(random_case(model)) <= dtype_tolerance(torch.float32)


def test_a_model_that_is_not_small_is_refused() -> None:
    with pytest.raises(hugging_face.LoadError, match="even when it is small it has"):
        hugging_face.small_model("gpt2", n_embd=4096)


@pytest.mark.slow  # the command's own test covers gpt2; the survey covers all
@pytest.mark.parametrize("name", ["marian", "llama"])
def test_every_fault_wrapped_around_a_model_is_caught(name: str) -> None:
    caught = list(self_test(hugging_face.small_model(name)))
    assert {each.id for each in caught} == {fault.id for fault in FAULTS}
    assert [each.id for each in caught if not each.caught_by] == []


def test_parameters_are_reproducible_and_never_zero_or_one() -> None:
    one, same = (dict(hugging_face.small_model("bart").model.named_parameters()) for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(((p == 0) | (p == 1)).any() for p in one.values())


@pytest.mark.usefixtures("float64_alone")
def test_a_folder_with_weights_is_measured(tmp_path: Path) -> None:
    hugging_face.small_model("marian").model.save_pretrained(tmp_path / "model")
    code, out, err = run_cli("verify", "--model", tmp_path / "model", "--json", "--report", tmp_path / "page")
    assert code == 0  # every check passes
    checks = {check["id"]: check for check in json.loads(out)["checks"]}
    assert checks["steps"]["measured"] < 1e-12
    assert not checks["padding.left"]["offered"]
    assert err.splitlines() == [f"page: {tmp_path / 'page' / 'index.html'}"]
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "MarianMTModel of transformers" in page
    assert "not offered" in page


def test_a_decoder_for_audio_is_loaded_from_a_folder(tmp_path: Path) -> None:
    hugging_face.small_model("qwen2_audio").model.save_pretrained(tmp_path)
    loaded = hugging_face.load_or_build(str(tmp_path))
    assert (type(loaded), loaded.auto_class.__name__) == (hugging_face.DecoderOnly, "AutoModelForSeq2SeqLM")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of `torch.compile`
def test_what_a_user_sets_on_an_adapter_holds_in_every_dtype_and_variant() -> None:
    adapter = hugging_face.small_model("gpt2")
    adapter.max_len, adapter.refusal, adapter.takes_mask = 12, NotOfferedError, False
    for other in (adapter.to(torch.float64), adapter.variants["static"]()):
        assert (other.max_len, other.refusal, other.takes_mask) == (12, NotOfferedError, False)
    copied = weakref.ref(adapter.to(torch.float64))
    assert copied() is None  # at once, for copies are large
    with_peft = copy.copy(adapter.model)
    with_peft.forward, with_peft.get_base_model = lambda *args, **kwargs: None, lambda: adapter.model
    for wrapped in (torch.compile(adapter.model), with_peft):
        assert hugging_face.DecoderOnly(wrapped).cache_name == "past_key_values"


def test_a_class_name_selects_its_architecture() -> None:
    assert hugging_face.load_or_build("MarianMTModel").name == hugging_face.load_or_build("marian").name


@pytest.mark.usefixtures("float64_alone")
def test_a_failed_check_ends_with_code_1_and_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrans.cachecheck.cache_checks.MAX_LENGTH_WITH_PROMPT", 10)  # five tokens are generated
    small_model = hugging_face.small_model
    monkeypatch.setattr(hugging_face, "small_model", lambda name: small_model(name, n_layer=1, n_positions=20))
    code, out, _ = run_cli("verify", "--model", "gpt2", "--report", tmp_path / "issue.md")
    assert code == 1
    text = (tmp_path / "issue.md").read_text(encoding="utf-8")
    row = r"^\| padding.left-mask-alone \| .* \| 1e-12 \| .*: padding is not attended to, but counted"
    assert re.search(row, text, re.M)
    program, printed = re.findall(r"^```\w+\n(.*?)^```", text, re.M | re.S)
    assert "minitrans" not in program
    assert min(json.loads(printed)) > 0.1  # as a process that ran the program printed it
    assert re.search(r"^transformers 5\.\S+, torch 2\.", text, re.M)
    out = " ".join(out.split())
    assert "this looks like: padding is not attended to, but counted" in out
    assert "25 passed, 1 failed, 2 not offered" in out
    few_checks = [check for check in CHECKS if any(check.id in fault.detected_by for fault in FAULTS)]
    monkeypatch.setattr(runner, "CHECKS", few_checks)
    assert "7 sabotages, 7 caught" in run_cli("verify", "--model", "gpt2", "--self-test")[1]
    monkeypatch.setattr(runner, "CHECKS", [check for check in CHECKS if check.id in ("steps", "causal.prefix")])
    assert run_cli("verify", "--model", "gpt2")[0] == 0
    monkeypatch.setattr(hugging_face.DecoderOnly, "feed", Mock(side_effect=TypeError("no cache")))
    assert run_cli("verify", "--model", "gpt2")[0] == 1  # not offered, as `check_cache` refuses it


def test_the_search_for_failing_chunks_tries_few_lengths_beyond_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, tried = Toy(), Mock(return_value=0.0)
    toy.max_len, toy.window_sizes = 2000, (512,)
    monkeypatch.setattr(issue, "chunk_deviation", tried)
    assert issue.shortest_failing_chunks(random_case(toy), FLOAT64_TOLERANCE) is None
    assert max(sum(call.args[1]) for call in tried.call_args_list) == 2 * 512
    assert tried.call_count < 1000

    def one_by_one(_: object, chunks: list[int]) -> float:
        if max(chunks) > 1:
            raise NotOfferedError("it takes one token at a time")
        return len(chunks) - 1.0

    tried.side_effect = one_by_one
    assert issue.shortest_failing_chunks(random_case(toy), FLOAT64_TOLERANCE)[1] == [1, 1]


@pytest.mark.parametrize(("name", "n_programs"), [pytest.param("opt", 4, marks=pytest.mark.slow), ("bart", 1)])
def test_programs_of_an_issue_pass_a_right_model(
    name: str, n_programs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = hugging_face.small_model(name).to(torch.float64)
    monkeypatch.setattr(issue, "MAX_DRAFT", 2)
    monkeypatch.setattr(issue, "LONG_LENGTH", 6)
    assert issue.shortest_failing_chunks(random_case(model), FLOAT64_TOLERANCE) is None
    with monkeypatch.context() as patch:
        patch.setattr(issue, "chunk_deviation", lambda *_: math.nan)
        assert issue.shortest_failing_chunks(random_case(model), FLOAT64_TOLERANCE)
    monkeypatch.setattr(issue, "shortest_failing_chunks", lambda case, limit: (case.tokens[:, :6], [2, 3, 1]))
    checks = {"chunks"} | ({"rollback", "padding.left", "padding.left-mask-alone"} if name == "opt" else set())
    programs = [*issue.candidate_programs(random_case(model), model, name, checks, FLOAT64_TOLERANCE)]
    assert len(programs) == n_programs
    assert ["position_ids" in program for program in programs[2:]] in ([], [True, False])
    title = f"# {type(model.model).__name__}: no check of its cache fails"
    assert issue.issue_markdown(Report([]), model, name).startswith(title)
    no_steps = Result("steps", "", "", "", None, 0.0, False, 0.0, {}, False, "it is stateless")
    assert f"{title}, but it takes no single steps: it is" in issue.issue_markdown(Report([no_steps]), model, name)
    for program in programs:
        with torch.random.fork_rng(), torch.enable_grad(), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(program, {})
        assert max(json.loads(printed.getvalue())) < FLOAT64_TOLERANCE
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # a folder with the name of an architecture is what was measured
    program = next(issue.candidate_programs(random_case(model), model, name, checks, FLOAT64_TOLERANCE))
    assert f".from_pretrained('{name}', " in program
    assert issue.failing_program_output("print('inf 4.57.1 ...'); print([0.1, float('nan')])", 1.0) == "[0.1, nan]"
    assert issue.failing_program_output("print('informative'); print([0.1])", 1.0) == ""
    assert issue.failing_program_output("print('of 5.23.0'); raise SystemExit(1)", 1.0) == ""
    limits = Mock(return_value=[])
    monkeypatch.setattr(issue, "candidate_programs", limits)
    for worst in (1e-11, 0.5, math.nan):
        errors = {"a": 1e-11, "b": worst, "c": 1e-11}
        failed = [Result(id_, "", "", "", error, FLOAT64_TOLERANCE, False, 0.5, {}) for id_, error in errors.items()]
        issue.issue_markdown(Report(failed), model, name)
    assert [call.args[-1] for call in limits.call_args_list] == [FLOAT64_TOLERANCE, MIN_FAULT, MIN_FAULT]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["./gone"], "--model ./gone is not a folder with a model"),
        (["{tmp}"], ".* cannot be loaded, from a folder or the hub: .* contains custom code"),
        (["a" * 300], ".* cannot be loaded, from a folder or the hub: "),
        *(
            (["gpt2", *more], "--model measures a model that is not ours: "
                              "give no RUN, --data, --sabotage or --compiled with it")
            for more in (["run"], ["--data", "x"], ["--sabotage", "mask.leak"], ["--compiled", "off"])
        ),
        *(
            ([name], f"no small {name} can be made; give a folder with a model: .*{re.escape(why)}")
            for name, why in {
                "voxtral_realtime": "You must specify exactly one of input_features or encoder_inputs_embeds",
                "gemma4_assistant": "hidden_size_per_layer_input must be 0",
                "musicgen": "'MusicgenConfig' object has no attribute 'dropout'",
            }.items()
        ),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_measured_is_refused_in_one_line(flags: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "code.Config"}}')  # never run, and no prompt
    message = refusal_message("verify", "--model", *(flag.format(tmp=tmp_path) for flag in flags))
    assert re.fullmatch(f"{words}.*", message)


def test_missing_packages_are_reported() -> None:
    """Each is missing in a process of its own, forked after PyTorch and our command have been imported."""
    program = """
import os, sys, torch
from minitrans import cli
for missing in sys.argv[1:]:
    if not (child := os.fork()):
        sys.modules[missing] = None
        os._exit(cli.main(["verify", "--model", "marian"]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
"""
    words = {"transformers": "is not installed"} | dict.fromkeys(["huggingface_hub", "regex"], "cannot be imported: ")
    done = subprocess.run([sys.executable, "-Wignore", "-c", program, *words], capture_output=True, text=True)
    for line, (missing, said) in zip(done.stderr.splitlines(), words.items(), strict=True):
        assert line.startswith(f"minitrans: error: transformers {said}")
        assert missing in line
    assert done.returncode == 0


def test_a_name_on_the_hub_fails_offline_with_one_line() -> None:
    program = """
import sys, time
from minitrans import cli
time.sleep = lambda seconds: None
sys.exit(cli.main(["verify", "--model", "somebody/some-model"]))
"""
    offline = dict(os.environ, HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="0")
    done = subprocess.run([sys.executable, "-c", program], env=offline, capture_output=True, text=True)
    said = "--model somebody/some-model cannot be loaded, from a folder or the hub: We couldn't connect to"
    assert done.returncode == 2
    assert done.stderr.startswith(f"minitrans: error: {said}")
    assert done.stderr.count("\n") == 1
