"""The checks of anyone's model: a correct toy passes, and each of its faults is noticed, located and named."""

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from toy_model import MAX_LEN, LogitsOff, Toy, ToyCache, V, is_last_row

from minitrans.cachecheck import cache_checks, run, runner, self_test
from minitrans.cachecheck.cache_checks import CHECKS, LONG_LENGTH, continue_prompts, extend_tokens, step_deviation
from minitrans.cachecheck.failure_patterns import counts_padding
from minitrans.cachecheck.faults import FAULTS, Faulty, last_generated_wrong, padding_seen
from minitrans.cachecheck.measurement import FLOAT64_TOLERANCE, MIN_FAULT, Measurement, Result, dtype_tolerance, to_str
from minitrans.cachecheck.runner import cases_by_dtype, failure_line, random_case, run_checks
from minitrans.verify import CachedModel, Functions, NotOfferedError, check_cache
from minitrans.verify.model_and_pairs import fresh_model
from minitrans.verify.transformer_adapter import TransformerAdapter

CHECKS_BY_ID = {check.id: check for check in CHECKS}
CACHE_OP_IDS = "rows rollback fork caches.two caches.alternating"
CACHED_STEP_IDS = f"steps chunks lengths greedy score static weights {CACHE_OP_IDS} batch source.padding"
CAUSAL_CHECK_IDS = "causal.prefix causal.values causal.gradient steps"
LEFT_PADDING_IDS = "padding.left padding.left-mask-alone"
DRAFT_IDS = "generate.lookup generate.assisted"
GENERATE_IDS = f"{DRAFT_IDS} generate.greedy generate.ragged generate.beams"
ALL_CACHED_IDS = f"{CACHED_STEP_IDS} {LEFT_PADDING_IDS} {GENERATE_IDS}"
# For each fault of the toy: the pattern that the checks name, if any; the checks that must notice and name it; and
# those that may fail too, where it is known that all others are unrelated to the fault (None: any may fail).
PATTERN_AND_CHECKS_BY_FAULT = {
    "forgets all": ("nothing is remembered: each step sees its own token alone", "steps lengths score batch", None),
    "positions restart": ("positions start at 0 again at every step", CACHED_STEP_IDS, ALL_CACHED_IDS),
    "mask late": ("the causal mask is one position late", CAUSAL_CHECK_IDS, None),
    "no mask": ("there is no causal mask", CAUSAL_CHECK_IDS, None),
    "padding seen": ("padding is attended to", "source.padding source.padding-token", "generate.ragged"),
    "own padding seen": ("padding is attended to", LEFT_PADDING_IDS, "generate.ragged"),
    "padding counted": ("padding is not attended to, but counted", LEFT_PADDING_IDS, None),
    "mask alone": ("padding is not attended to, but counted", "padding.left-mask-alone", ""),
    "static": ("positions start at 0 again at every step", "static", ""),
    "cache cut": ("the cache forgets its first tokens", "steps chunks lengths", None),
    "wrong corner": ("only a later chunk is wrong", "chunks", ALL_CACHED_IDS),
    "chunk forgets": ("only a later chunk is wrong", "chunks", ALL_CACHED_IDS),
    "stale": ("each step is fed the previous token", "steps chunks", None),
    "target rows": ("keys and values of the target are not selected", "rows", "generate.beams"),
    "source rows": ("keys and values of the source are not selected", "rows", None),
    "padding seen in steps": (None, "rows steps", None),
    "all rows": ("no rows are selected at all", "rows", None),
    "rows reversed": (None, "rows", "generate.beams"),
    "repeated rows": (None, "rows", None),
    "drops nothing": ("no tokens are dropped at all", "rollback", DRAFT_IDS),
    "values dropped first": ("dropped tokens are still seen", "rollback", DRAFT_IDS),
    "weights": (None, "weights", ""),
    "dropout": ("random numbers are drawn", "random steps", None),
    "float32": ("something inside is computed in float32", "lengths", None),
    "copies share": ("two caches share memory", "fork", ""),
    "shared": ("two caches share memory", "caches.two", None),
}


def failed_results(model: CachedModel[Any], *ids: str) -> dict[str, Result]:
    """The results, by id, of the checks that fail, among those with these ids or among all."""
    checks = [CHECKS_BY_ID[id_] for id_ in ids or CHECKS_BY_ID]
    return {result.id: result for result in run_checks(cases_by_dtype(model), checks) if result.failed}


def test_a_correct_model_passes_every_check() -> None:
    toy = Toy()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):  # which change nothing
        report = check_cache(toy)
    assert report.passed
    assert [result.id for result in report.checks if not result.offered] == []
    assert [result.id for result in report.checks] == [check.id for check in CHECKS]
    assert not counts_padding(random_case(toy))
    covered = {id_ for id_, *_ in CHECK_PART_FAULTS} | {
        id_ for _, ids, _ in PATTERN_AND_CHECKS_BY_FAULT.values() for id_ in ids.split()
    }
    assert covered == set(CHECKS_BY_ID)  # every check has a fault of its own
    assert [set(result.by_dtype) for result in report.checks[:2]] == [{"float64", "float32", "bfloat16"}, {"float64"}]
    small = Toy()
    small.max_len, small.window_sizes = 4, (0, 6)  # 0: none
    assert [result.id for result in run(small).checks if not result.passed] == []
    assert cache_checks.ragged_prompts(random_case(small), "left")[1].any(1).all()  # no row is only padding
    small.fault = "own padding seen"
    assert failed_results(small, "padding.left")
    small.max_len = 3
    with pytest.raises(AssertionError, match=r"^no full pass: it takes 3 tokens, but the checks need sentences of 4$"):
        check_cache(small)


@pytest.mark.usefixtures("float64_alone")
@pytest.mark.parametrize("fault", PATTERN_AND_CHECKS_BY_FAULT)
def test_a_fault_is_noticed_and_named_by_the_checks_that_concern_it(fault: str) -> None:
    words, ids, others = PATTERN_AND_CHECKS_BY_FAULT[fault]
    results = failed_results(Toy(fault), *(ids.split() if others is None else ()))
    for id_ in ids.split():
        said = results[id_].detail.split("; ")[-1]
        assert (f"this looks like: {words}" if words else "is the first that differs") in said
        assert words or "this looks like" not in results[id_].detail
    assert others is None or set(results) <= {*ids.split(), *others.split()}


def after(*chunks: int, when: LogitsOff = lambda *_: True) -> LogitsOff:
    """Make logits wrong in the last row by what `when` returns, after exactly these chunks (none in a full pass)."""
    return lambda toy, ids, c: is_last_row(ids) * (c.chunks == [*chunks]) * when(toy, ids, c)


def off_in(way: str, when: Callable[[Tensor], bool] = lambda ids: True, n: int = 0) -> LogitsOff:
    """Make the last id by far the likeliest when tokens are generated in this way; given n, only after n tokens."""
    return lambda toy, ids, c: (
        1e3
        * torch.arange(V)
        * (toy.way == way and when(ids) and (not n or (c.mask is not None and c.mask.size(1) == n)))
    )


TOKENS = random_case(Toy()).tokens
TOKENS_OF_COPY = random_case(Toy()).other_tokens(TOKENS[:, -1:])
SINGLES, ENDS_SUM, SELECTIONS_TEXT = [1] * 9, int(TOKENS[:, -1].sum()), "after selections of rows up to"
# For each part of a check: text in its number and message, and a fault that no other part of that check notices.
CHECK_PART_FAULTS: list[tuple[str, str, str | LogitsOff]] = [
    ("steps", "position 8 of row 2 is the first that differs", after(*SINGLES)),
    ("chunks", "fed in chunks of 2 + 3", after(2, 3)),
    ("chunks", "as a chunk of 2 after 7 single tokens", after(*SINGLES[:7], 2)),
    ("lengths", "3 tokens, and then one by one to 8", after(3, 1, 1, 1, 1, 1)),
    ("lengths", "9 tokens, and then one by one to 14", after(9, 1, 1, 1, 1, 1)),
    ("lengths", "17 tokens, and then one by one to 20", after(17, 1, 1, 1)),
    ("lengths", "fed one by one", after(*[1] * 20)),
    ("lengths", "fed in chunks of 5 + 5 + 5 + 5", after(5, 5, 5, 5)),
    ("lengths", "fed in chunks of 7 + 7 + 6", after(7, 7, 6)),
    ("lengths", "fed in chunks of 20", after(20)),
    ("greedy", "1: ", after(*SINGLES[:8], when=lambda toy, ids, c: 1e3 * torch.arange(V))),
    ("greedy", ": ", after(*SINGLES[:6], when=lambda *x: 1e3 * torch.arange(V) * (x[1][-1, -1] != TOKENS[-1, 5]))),
    ("score", "", after(*SINGLES[:8], when=lambda toy, ids, c: torch.arange(V))),
    ("static", "fed in chunks of 6 + 1 + 1 + 1", after(6, 1, 1, 1)),
    ("weights", "position 8 of row 2", after(*SINGLES, when=lambda toy, ids, c: toy.returns_weights)),
    ("causal.prefix", "without what follows token 1", after(when=lambda toy, ids, c: ids.size(1) == 1)),
    ("causal.prefix", "without what follows token 8", after(when=lambda toy, ids, c: ids.size(1) == 8)),
    ("causal.values", "with other tokens from 1 on", after(when=lambda toy, ids, c: torch.eye(9)[:, :1] * ids[-1, 1])),
    ("causal.values", "with other tokens from 8 on", after(when=lambda toy, ids, c: torch.eye(9)[:, 7:8] * ids[-1, 8])),
    ("causal.gradient", "token 1 has no gradient from its own position", "a token late"),
    ("reach", "7: ", "a token late"),
    ("reach", "8: ", "own token alone"),
    ("reach", "19: ", lambda *_: torch.tensor(math.nan)),
    ("reach", "3: ", "source unused"),
    ("source.padding", "with 3 more columns of padding", after(when=lambda toy, ids, c: c.memory[1].size(1) == 10)),
    ("source.padding", "2 of 2 tokens alone", after(when=lambda toy, ids, c: c.memory[1].shape == (1, 2))),
    ("source.padding", "batch, one by one", after(*SINGLES, when=lambda toy, ids, c: c.memory[1].shape == (1, 2))),
    ("padding.right", "2 of 3 tokens alone and padded on the right", after(when=lambda t, ids, _: ids.shape == (3, 7))),
    ("padding.left", "2 of 3 tokens alone and padded on the left", after(when=lambda toy, ids, c: ids.shape == (3, 7))),
    ("padding.left", "2 of 3 tokens in pieces of 7 and two steps", after(7, 1, 1)),
    ("padding.left", "2 of 3 tokens in pieces of 3 and two steps", after(3, 3)),
    ("padding.left", "2 of 3 tokens in pieces of 3 and two steps", after(3, 3, 1, 1, 1)),
    ("batch", "with the rows in reverse", after(when=lambda toy, ids, c: bool(ids[-1, -1] == TOKENS[0, -1]))),
    ("batch", "beside rows of other tokens, full",
     after(when=lambda toy, ids, c: len(ids) == 3 and int(ids[:, -1].sum()) != ENDS_SUM)),
    ("batch", "beside rows of other tokens, steps",
     after(*SINGLES, when=lambda toy, ids, c: int(ids[:, -1].sum()) != ENDS_SUM)),
    ("batch", " alone, full pass", after(when=lambda toy, ids, c: len(ids) == 1)),
    ("batch", " alone, after a prompt", after(2, *SINGLES[:7], when=lambda toy, ids, c: len(ids) == 1)),
    ("rows", f"{SELECTIONS_TEXT} [1, 0, 0, 1, 2, 1]", after(5, 1, 1)),
    ("rows", f"{SELECTIONS_TEXT} [3, 3, 3]",
     after(5, 1, 1, 1, when=lambda t, i, c: str(c.selected_rows) == "tensor([3, 3, 3])")),
    ("rows", f"{SELECTIONS_TEXT} [2]", after(5, 1, 1, 1, 1)),
    ("rows", SELECTIONS_TEXT, "repeated rows"),
    ("rows", "with the rows in reverse after prompts", after(7, 1, when=lambda t, i, c: c.selected_rows is not None)),
    ("rollback", "up to 6 tokens, fed in one chunk and", after(1, 3, -2, 4)),
    ("rollback", "up to 6 tokens, fed one by one and", after(1, 1, 1, 1, -2, 1)),
    ("rollback", "after prompts padded on the left and a token that was dropped", after(7, 1, -1, 1)),
    ("rollback", "", lambda toy, ids, c: sum(c.chunks) > 14 and min(c.chunks) < 0),  # twice beyond the window
    ("fork", "the cache that was copied after 4", after(4, *SINGLES[:5], when=lambda toy, ids, c: c is toy.newest)),
    ("fork", "a copy after 4", after(4, *SINGLES[:5], when=lambda toy, ids, c: bool((ids == TOKENS_OF_COPY).all()))),
    ("fork", "a copy of a copy after 4", after(4, *SINGLES[:5], when=lambda toy, ids, c: c.copy_depth == 2)),
    ("fork", "a copy after prompts padded on the left", after(7, 1, when=lambda toy, ids, c: c.copy_depth == 1)),
    ("caches.two", "", lambda toy, ids, c: bool(c.chunks) and c is not toy.newest),
    ("caches.two", "", lambda toy, ids, c: c is toy.newest),
    ("caches.alternating", "full pass between", after(when=lambda toy, ids, c: bool(toy.latest and toy.latest.chunks))),
    ("caches.alternating", "", lambda toy, ids, c: len(c.chunks) > 1 and c is not toy.latest),
    ("generate.greedy", " alone, cached", off_in("cached", lambda ids: len(ids) == 1)),
    ("generate.greedy", "position 5 is", off_in("cached", lambda ids: ids.shape == (1, 5))),
    ("generate.greedy", "position 15 is", off_in("cached", lambda ids: len(ids) == 1, 15)),
    ("generate.greedy", "prompt 2 alone, uncached", off_in("uncached", lambda ids: bool(ids[0, 1] == TOKENS[2, 1]))),
    ("generate.lookup", " alone, lookup", off_in("lookup")),
    ("generate.lookup", " alone, lookup", "values dropped first"),
    ("generate.assisted", " alone, draft", off_in("draft")),
    ("generate.assisted", " alone", "values dropped first"),
    ("generate.assisted", " alone, own draft", off_in("own draft")),
    ("generate.ragged", " in a batch", off_in("cached", lambda ids: len(ids) == 3)),
    ("generate.ragged", " in a batch", "padding counted"),
    ("generate.ragged", " in a batch", "padding seen"),
    ("generate.beams", "prompt ", off_in("beams")),
    ("generate.beams", "prompt ", off_in("uncached beams")),
    ("generate.beams", "prompt ", "target rows"),
    ("random", "1: ", lambda toy, ids, c: not c.chunks and torch.rand(1) < 0),
    ("random", "1: ", lambda toy, ids, c: bool(c.chunks) and torch.rand(1) < 0),
]  # fmt: skip


@pytest.mark.parametrize(("id_", "said", "fault"), CHECK_PART_FAULTS)
def test_each_part_of_a_check_notices_what_no_other_part_does(id_: str, said: str, fault: str | LogitsOff) -> None:
    result = CHECKS_BY_ID[id_].run({torch.float64: random_case(Toy(fault))}, may_lack=True)
    assert result.failed
    assert said in f"{to_str(result.measured)}: {result.detail}"


def test_a_model_gets_contiguous_tokens_of_its_own() -> None:
    class Clamping(Toy):
        def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
            return super().full_pass(memory, tokens.view(-1).view(len(tokens), -1), mask)

        def feed(self, tokens: Tensor, cache: ToyCache, mask: Tensor | None = None) -> list[Tensor]:
            return super().feed(tokens.view(-1).clamp_(max=9).view(len(tokens), -1), cache, mask)

    class Overwriting(Toy):
        def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
            ids = super().generate(memory, prompts, n, way, mask)
            prompts.fill_(V - 1)
            return ids

    checks = [CHECKS_BY_ID["steps"], CHECKS_BY_ID["causal.prefix"]]
    steps, prefix = run_checks({torch.float64: random_case(Clamping())}, checks)
    assert (steps.failed, prefix.passed) == (True, True)
    case = random_case(Overwriting())
    tokens = case.tokens.clone()
    continue_prompts(case, case.tokens[:, :4], "cached")
    assert torch.equal(case.tokens, tokens)


class EagerSoftmaxInFloat32(Toy):
    """Like many models, it computes its softmax in float32 if its attention weights are requested."""

    eager_in_float32 = True


class LastLayerSoftmaxInFloat32(Toy):
    """Its softmax is in float32 in the second of two layers only, each of which has two kinds of attention."""

    n_calls = 0

    def _attention_weights(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        self.eager_in_float32 = self.n_calls % 4 >= 2
        self.n_calls += 1
        return super()._attention_weights(q, k, seen)


@pytest.mark.usefixtures("float64_alone")
@pytest.mark.parametrize("kind", [EagerSoftmaxInFloat32, LastLayerSoftmaxInFloat32])
def test_weights_in_float32_are_allowed_the_rounding_of_float32(kind: type[Toy]) -> None:
    results = {result.id: result for result in check_cache(kind()).checks}
    tolerances = {id_: result.tolerance for id_, result in results.items() if result.tolerance}
    rounded = dict.fromkeys(["weights", *GENERATE_IDS.split()], dtype_tolerance(torch.float32))
    assert tolerances == dict.fromkeys(tolerances, FLOAT64_TOLERANCE) | rounded
    weights = results["weights"]
    assert weights.by_dtype["float64"].measured > FLOAT64_TOLERANCE
    assert weights.detail == "part of it is computed in float32, and allowed its rounding"


@pytest.mark.parametrize(
    ("fault", "words"),
    [("weights", "differs"), ("positions restart", "positions start at 0"), ("mask late", "is one position late")],
)
def test_wrong_weights_in_float32_are_noticed_and_named(fault: str, words: str) -> None:
    result = failed_results(EagerSoftmaxInFloat32(fault), "weights")["weights"]
    assert result.by_dtype["float64"].measured > MIN_FAULT
    assert words in result.detail


def test_weights_of_0_and_1_are_not_taken_for_float32() -> None:
    class Hard(Toy):
        def _attention_weights(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
            return super()._attention_weights(q, k, seen).round()

    assert CHECKS_BY_ID["weights"].run({torch.float64: random_case(Hard())}).tolerance == FLOAT64_TOLERANCE


def test_scores_in_the_wrong_rows_are_noticed() -> None:
    class Exchanged(Toy):
        def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> list[Tensor]:
            return [x.flip(0) for x in super().feed(tokens, cache, mask)]

    case = random_case(Exchanged())
    case = case.with_tokens(case.tokens[:1].expand(3, -1))  # whose sources differ
    assert cache_checks.sentence_score_deviation(case) > MIN_FAULT


@pytest.mark.parametrize(
    ("window_sizes", "max_len", "longest"),
    [((), None, LONG_LENGTH), ((9,), None, 29), ((9,), 500, 500), ((), 2**17, 1024), ((500, 4096), None, 1024)],
)
def test_long_sentences_exceed_windows_or_reach_max_len_up_to_a_size_limit(
    window_sizes: tuple[int, ...], max_len: int | None, longest: int
) -> None:
    weights, sizes = torch.randn(V, V, dtype=torch.float64), []

    def full(tokens: Tensor) -> Tensor:
        sizes.append(tokens.numel())
        return weights[tokens]

    def measured(wrong_from: int, id_: str = "lengths", wrong_step: int = 0) -> Result:
        def step(tokens: Tensor, n: int | None) -> tuple[Tensor, int]:
            n = (n or 0) + tokens.size(1)
            return weights[tokens] + (n >= wrong_from or (n == wrong_step and tokens.size(1) == 1)), n

        more: dict[str, Any] = {"dtype": torch.float64, "max_len": max_len, "window_sizes": window_sizes}
        pair = Functions(full, step, V, drop=lambda n, dropped: n - dropped, **more)
        return CHECKS_BY_ID[id_].run({torch.float64: random_case(pair)})

    assert measured(longest).failed
    assert measured(longest + 1, wrong_step=17).failed
    assert measured(longest + 1).passed
    assert measured(longest + 1, "rollback").passed
    assert max(sizes) <= 1024


def test_generation_that_changes_the_prompts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy()
    monkeypatch.setattr(toy, "generate", lambda *given: Toy.generate(toy, *given).index_fill(1, torch.tensor([1]), 1))
    case = random_case(toy)
    with pytest.raises(ValueError, match="or changed the prompts"):
        continue_prompts(case, case.tokens[:1, :4], "cached")


def test_a_long_sentence_does_not_repeat_itself() -> None:
    tokens = extend_tokens(random_case(Toy()), 27)
    assert tokens.shape == (3, 27)
    assert (tokens[:, 9:] != tokens[:, :-9]).all()


@pytest.mark.usefixtures("float64_alone")
def test_check_cache_raises_with_the_first_difference_unless_the_check_is_skipped() -> None:
    where = "position 3 of row 0 is the first that differs, by "
    with pytest.raises(AssertionError, match=rf"(?s)steps: .*, at most 1e-12 is allowed: {where}"):
        check_cache(Toy("cache cut"))
    with pytest.raises(AssertionError, match=r"\Achunks: "):
        check_cache(Toy("cache cut"), skip=("steps",))
    with pytest.raises(AssertionError, match=r"\Apadding.left-mask-alone: "):
        check_cache(Toy("mask alone"), skip=("padding.left",))
    assert not check_cache(Toy("target rows"), skip=("rows", "generate.beams")).passed
    for wrong in ("generate.greedy", ("stepz",)):
        with pytest.raises(ValueError, match="is not a tuple of ids of checks"):
            check_cache(Toy(), skip=wrong)  # type: ignore[arg-type]  # the comma is forgotten


def test_a_failure_is_raised_even_if_python_strips_assert_statements() -> None:
    module = vars(ModuleType("runner"))
    exec(compile(inspect.getsource(runner), "runner", "exec", optimize=1), module)
    with pytest.raises(AssertionError, match=r"^rows: "):
        module["check_cache"](Toy("target rows"))


@pytest.mark.parametrize(("float64", "words"), [(0.0, "0.5, at most 1.5e-5"), (math.nan, "NaN, at most 1e-12")])
def test_a_failure_is_reported_for_the_first_dtype_that_fails(float64: float, words: str) -> None:
    lower = {"float32": Measurement(0.5, 2.0**-16), "bfloat16": Measurement(0.25, 2.0**-4)}
    result = Result("x", "A chapter", "A claim.", "what", float64, 1e-12, False, 0.5, lower)
    assert failure_line(result) == f"x: {words} is allowed: A claim."


@pytest.mark.usefixtures("float64_alone")
def test_every_fault_that_can_be_wrapped_around_the_toy_is_caught() -> None:
    caught = {each.id: set(each.caught_by) for each in self_test(Toy())}
    assert set(caught) == {fault.id for fault in FAULTS}
    assert [caught[id_] for id_ in ("rows.swapped", "copy.shared", "draft.kept")] == [{"rows"}, {"fork"}, {"rollback"}]
    assert caught["generated.last"] == set(GENERATE_IDS.split())
    of_padding = f"source.padding source.padding-token {LEFT_PADDING_IDS} generate.ragged"
    assert caught["padding.seen"] == set(of_padding.split())
    of_steps = {"steps", "chunks", "score", "static", "weights", "caches.two", "caches.alternating", "batch"}
    assert caught["cache.cut"] >= of_steps | {"lengths"}
    assert caught["cache.cut"].isdisjoint({"causal.prefix", "reach", "rows", "random"})
    assert caught["mask.late"] >= {"causal.prefix", "causal.values", "causal.gradient"}


@pytest.mark.usefixtures("float64_alone")
def test_a_fault_that_the_model_already_has_is_not_wrapped_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CHECKS", [CHECKS_BY_ID[id_] for fault in FAULTS for id_ in fault.detected_by])
    caught = {each.id: each.caught_by for each in self_test(Toy("all rows"))}
    assert set(caught) == {fault.id for fault in FAULTS} - {"rows.swapped"}
    assert not any("rows" in ids for ids in caught.values())  # it failed before
    assert {each.id for each in self_test(Toy("positions restart"))} == {"mask.late"}  # all others show only in steps


def test_only_faults_that_affect_a_model_are_wrapped_around_it() -> None:
    weights = torch.randn(V, V, dtype=torch.float64)
    pair = Functions(lambda tokens: weights[tokens], lambda tokens, n: (weights[tokens], n), V, dtype=torch.float64)
    assert {each.id for each in self_test(pair)} == {"mask.late", "cache.cut", "copy.shared"}


def test_the_padding_fault_treats_padding_as_real_in_full_passes_and_steps() -> None:
    case = random_case(Toy())
    case, mask = replace(case, model=Faulty(case.model, padding_seen)), torch.ones(3, 9, dtype=torch.bool).triu(1)
    assert torch.equal(case.full_pass(mask)[0], case.full_pass()[0])
    assert torch.equal(*(case.feed(case.tokens, case.new_cache(), some)[0] for some in (mask, None)))


def test_the_generation_fault_changes_only_the_last_token_of_every_row() -> None:
    right = torch.arange(12).view(3, 4)
    changed = last_generated_wrong(Mock(ordinary=(7, 3), generate=lambda *_: right.clone()))
    assert torch.equal(changed["generate"](None, right, 0, "cached") != right, right % 4 == 3)


def test_a_model_made_of_functions_offers_what_it_is_given() -> None:
    """For a model of only two functions, see test_your_model.py."""
    toy = Toy()
    memory = toy.encode(torch.tensor([[4, 5]]), torch.ones(1, 2, dtype=torch.bool))

    def of(rows: int) -> tuple[Tensor, Tensor]:
        return memory[0].expand(rows, -1, -1), memory[1].expand(rows, -1)

    def full(tokens: Tensor) -> Tensor:
        return toy.full_pass(of(len(tokens)), tokens)[0]

    def step(tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        cache = toy.new_cache(of(len(tokens)), len(tokens), MAX_LEN) if cache is None else cache
        return toy.feed(tokens, cache)[0], cache

    more: dict[str, Any] = {"select": toy.select_rows, "drop": toy.drop_last, "embedding": toy.tokens}
    results = check_cache(Functions(full, step, V, **more, dtype=torch.float64, max_len=MAX_LEN)).checks
    assert len(Functions(full, step, V).ordinary) == V
    passed = {"steps", "chunks", "lengths", "causal.values", "causal.gradient", "batch", "rows", "rollback"}
    assert {result.id for result in results if result.passed} >= passed
    results = run(Functions(torch.inference_mode()(full), step, V, **more, dtype=torch.float64)).checks
    assert [r.detail for r in results if r.id == "causal.gradient"] == ["its full pass is computed without gradients"]
    broken: dict[str, Any] = {"select": lambda cache, rows: cache[rows], "drop": lambda cache, n: cache[:, :-n]}
    failed = failed_results(Functions(full, step, V, **broken, dtype=torch.float64, max_len=MAX_LEN))
    words = "TypeError: 'ToyCache' object is not subscriptable"
    assert {id_: result.detail for id_, result in failed.items()} == {"rows": words, "rollback": words}
    broken["select"] = lambda cache, rows: cache
    broken["drop"] = lambda cache, n: replace(cache, keys=[[torch.cat(layer, 1)[:, :-n]] for layer in cache.keys])
    failed = failed_results(Functions(full, step, V, **broken, dtype=torch.float64, max_len=MAX_LEN))
    assert failed.keys() == {"rows", "rollback"}
    assert all("RuntimeError: " in result.detail for result in failed.values())


def test_logits_that_are_not_a_tensor_are_reported_with_their_type() -> None:
    pair = Functions(lambda tokens: torch.zeros(*tokens.shape, V), lambda tokens, cache: (cache, tokens), V)
    assert failed_results(pair)["steps"].detail == "TypeError: the logits are not a tensor, but of type NoneType"
    with pytest.raises(AssertionError, match=r"\Ano full pass: the logits are not a tensor, but of type tuple\Z"):
        check_cache(Functions(Mock(return_value=()), Mock(), V))

    class Bare(Toy):
        def full_pass(self, *arguments: Any) -> Any:
            return super().full_pass(*arguments)[0]

    with pytest.raises(AssertionError, match=r"\Ano full pass: what is returned is a tensor, not a list of tensors"):
        check_cache(Bare())


def test_a_model_that_cannot_step_fails_with_its_own_error_message() -> None:
    class Raising(Toy):
        def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> list[Tensor]:
            raise IndexError("index out of\nrange in self")

    results = {result.id: result for result in run(Raising()).checks}
    assert not results["steps"].offered
    assert results["steps"].detail == "IndexError: index out of range in self"
    assert results["causal.values"].passed
    with pytest.raises(AssertionError, match=r"\Asteps: IndexError: index out of range in self\nlengths: .*\ncausal"):
        check_cache(Raising("no mask"), skip=("steps",))


@pytest.mark.usefixtures("float64_alone")
def test_an_error_in_a_step_that_works_alone_is_a_failure_unless_it_is_a_not_offered_error() -> None:
    class OneCache(Toy):
        def feed(self, tokens: Tensor, cache: ToyCache, mask: Tensor | None = None) -> list[Tensor]:
            if refuses and cache is not self.newest:
                raise NotOfferedError("it holds one cache")
            return super().feed(tokens, self.newest or cache, mask)

    refuses = False
    for id_ in ("caches.two", "fork"):
        assert failed_results(OneCache(), id_)[id_].detail.startswith("AssertionError")
    refuses = True
    assert {r.id for r in check_cache(OneCache()).checks if r.detail == "it holds one cache"} >= {"caches.two", "fork"}
    of_some_rows = toy_that_takes(lambda tokens, cache, mask: len(tokens) > 1)
    assert failed_results(of_some_rows(), "batch")["batch"].detail == "AssertionError: it takes no more"


def toy_that_takes(takes: Callable[[Tensor, ToyCache, Tensor | None], bool]) -> type[Toy]:
    """A toy whose steps raise an error unless `takes` accepts their tokens, cache and mask."""

    class Refusing(Toy):
        def feed(self, tokens: Tensor, cache: ToyCache, mask: Tensor | None = None) -> list[Tensor]:
            if not takes(tokens, cache, mask):
                raise AssertionError("it takes no more")
            return super().feed(tokens, cache, mask)

    return Refusing


@pytest.mark.usefixtures("float64_alone")
def test_a_model_that_cannot_be_stepped_to_max_len_fails_unless_that_check_is_skipped() -> None:
    short = toy_that_takes(lambda tokens, cache, mask: sum(cache.chunks) + tokens.size(1) < MAX_LEN)
    with pytest.raises(AssertionError, match=r"\Alengths: AssertionError: it takes no more \(is max_len right\?\)\Z"):
        check_cache(short())
    assert check_cache(short(), skip=("lengths",)).passed


@pytest.mark.usefixtures("float64_alone")
def test_another_way_to_run_a_model_fails_if_it_raises_in_single_steps() -> None:
    toy = Toy()
    toy.variants = {"static": toy_that_takes(lambda tokens, cache, mask: sum(cache.chunks) + tokens.size(1) < 9)}
    assert failed_results(toy)["static"].detail == "AssertionError: it takes no more"


def test_a_correct_model_that_takes_only_single_tokens_passes() -> None:
    single = toy_that_takes(lambda tokens, cache, mask: tokens.size(1) == 1)
    passed = {result.id for result in check_cache(single()).checks if result.passed}
    assert {"steps", "lengths", "rows", "rollback", "fork", "caches.alternating"} < passed
    for fault, id_, words in (
        ("all rows", "rows", "no rows are"),
        ("drops nothing", "rollback", "no tokens are"),
        ("shared", "fork", "two"),
    ):
        assert f"this looks like: {words}" in failed_results(single(fault, weights=True), id_)[id_].detail


@pytest.mark.usefixtures("float64_alone")
def test_a_correct_model_that_takes_only_some_chunks_passes() -> None:
    single_after_the_prompt = toy_that_takes(lambda tokens, cache, mask: tokens.size(1) == 1 or not cache.chunks)
    passed = {result.id for result in check_cache(single_after_the_prompt()).checks if result.passed}
    assert {"padding.left", "rows", "rollback", "caches.alternating"} < passed
    for fault, id_ in (("own padding seen", "padding.left"), ("drops nothing", "rollback")):
        assert failed_results(single_after_the_prompt(fault), id_)
    padded_prompts_alone = toy_that_takes(lambda tokens, cache, mask: mask is None or not cache.chunks)
    assert failed_results(padded_prompts_alone()) == {}
    no_steps = toy_that_takes(lambda tokens, cache, mask: not cache.chunks)
    assert failed_results(no_steps()) == {}  # checks that need steps are not offered
    with pytest.raises(AssertionError, match="lengths: AssertionError"):
        check_cache(toy_that_takes(lambda tokens, cache, mask: tokens.size(1) < MAX_LEN - 3)())


@pytest.mark.parametrize("calls", [[], [(27,)], [(3, 9), (3, 9)]])  # shapes of ids in each call; tokens are (3, 9)
def test_the_gradient_check_needs_a_module_that_embeds_the_tokens_in_one_call(calls: list[tuple[int, ...]]) -> None:
    class Elsewhere(Toy):
        def embedding(self) -> nn.Module:
            return other

        def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
            unused = sum(0 * other(tokens.reshape(shape)).view(*tokens.shape, 1) for shape in calls)
            return [super().full_pass(memory, tokens, mask)[0] + unused]

    other, toy = nn.Embedding(V, 1, dtype=torch.float64), Elsewhere()
    result = CHECKS_BY_ID["causal.gradient"].run({toy.dtype: random_case(toy)}, may_lack=True)
    assert not result.offered
    assert result.detail == "the module that is said to embed the tokens is not called exactly once with them"


@pytest.mark.parametrize("error", [NotOfferedError, RuntimeError, ValueError, TypeError])
def test_without_float64_the_models_own_dtype_is_used(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    class Float32Only(Toy):
        def to(self, dtype: torch.dtype) -> Toy:
            if dtype == torch.float64:
                raise error("Expected Float32, got another")
            return super().to(dtype)

        def full_pass(self, *given: Any) -> list[Tensor]:
            return super().full_pass(*given[: 3 * (self.dtype == torch.float32)])

    report = check_cache(Float32Only(dtype=torch.float32))
    assert {name for result in report.checks for name in result.by_dtype} == {"float32"}
    assert all(result.measured is None for result in report.checks)
    assert next(result for result in report.checks if result.id == "chunks").passed
    monkeypatch.setattr(Float32Only, "full_pass", CachedModel.full_pass)
    for dtype, words in ((torch.float16, "Expected Float32, got another"), (torch.float32, "NotImplementedError: ")):
        with pytest.raises(AssertionError, match=rf"\Ano full pass: {words}\Z"):
            check_cache(Float32Only(dtype=dtype))
    with pytest.raises(AssertionError, match="no full pass: there is no way to convert it from float16 to float64"):
        check_cache(Functions(Mock(), Mock(), V, dtype=torch.float16))


def test_a_lower_dtype_may_be_refused_by_any_error() -> None:
    class Float64Only(Toy):
        def full_pass(self, *given: Any) -> list[Tensor]:
            assert self.dtype == torch.float64
            return super().full_pass(*given)

    assert {name for result in check_cache(Float64Only()).checks for name in result.by_dtype} == {"float64"}

    class NoBfloat16Steps(Toy):
        def feed(self, *given: Any) -> list[Tensor]:
            assert self.dtype != torch.bfloat16
            return super().feed(*given)

    with pytest.raises(AssertionError, match=r"steps: ∞, .*: AssertionError"):
        check_cache(NoBfloat16Steps())


def test_the_largest_logit_is_the_unit_and_only_position_0_has_the_first_id() -> None:
    class Large(Toy):
        def _run(self, *given: Any) -> list[Tensor]:
            return [1e8 * super()._run(*given)[0]]

    small, large = random_case(Toy()), random_case(Large())
    assert large.logit_unit == pytest.approx(1e8 * small.logit_unit)
    assert step_deviation(large) < 1e-13
    assert CHECKS_BY_ID["score"].run({torch.float64: large}).passed
    for first, logit, unit in ((0, 0.0, 1.0), (5, -2.0, 2.0), (7, -math.inf, 1.0)):
        case = random_case(Functions(Mock(return_value=torch.full((3, 9, V), logit)), Mock(), V, first=first))
        assert case.logit_unit == unit
        assert ((case.tokens == first) == (torch.arange(9) == 0)).all()


def test_special_ids_occur_only_at_the_start_of_targets() -> None:
    weights = torch.randn(V, V, dtype=torch.float64)
    weights[:, 0] = 9.0  # the likeliest of all

    def full(tokens: Tensor) -> Tensor:
        n_special = nn.functional.pad((tokens[:, 1:] < 2).cumsum(1), (1, 0))
        return weights[tokens] + n_special[..., None] * torch.arange(V)

    pair = Functions(full, lambda tokens, cache: (weights[tokens], cache), V, first=1, dtype=torch.float64)
    pair.ordinary = range(2, V)
    assert failed_results(pair).keys() == {"reach"}  # logits are those of their own token alone


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("lowest", [-1e4, -1e38, -math.inf])
def test_masked_out_tokens_neither_fail_a_correct_model_nor_hide_a_fault(lowest: float, dtype: torch.dtype) -> None:
    class Masked(Toy):
        to = CachedModel.to  # type: ignore[assignment]  # in this dtype only

        def _run(self, *given: Any) -> list[Tensor]:
            logits, *weights = super()._run(*given)
            never = (torch.arange(V) < 3) | (torch.arange(V) == given[0][..., None])  # no token occurs twice in a row
            return [torch.where(never, logits + lowest, logits), *weights]

    assert failed_results(Masked(dtype=dtype)) == {}
    results = failed_results(Masked("positions restart", dtype), "steps", "score", "caches.two")
    assert len(results) == 3
    for result in results.values():
        assert "this looks like: positions start at 0 again at every step" in result.detail


def test_weights_that_are_not_returned_are_not_measured() -> None:
    toy = Toy()
    toy.variants = {"weights": Toy}  # which returns its logits alone
    result = CHECKS_BY_ID["weights"].run({toy.dtype: random_case(toy)}, may_lack=True)
    assert (result.offered, result.detail) == (False, "it returns no attention weights")


def test_a_failure_in_one_dtype_is_explained_by_its_pattern_in_that_dtype() -> None:
    class Rough(Toy):
        def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> list[Tensor]:
            logits, *weights = super().feed(tokens, cache, mask)
            return [logits + (logits.abs().max() * torch.eye(V)[3] * (self.dtype == torch.bfloat16)), *weights]

    results = failed_results(Rough(), "steps", "fork", "caches.two")
    assert len(results) == 3
    assert not any("share memory" in result.detail for result in results.values())


@pytest.mark.usefixtures("float64_alone")
def test_nan_is_not_taken_for_random_numbers() -> None:
    details = {id_: result.detail for id_, result in failed_results(Toy(lambda *_: torch.tensor(math.nan))).items()}
    assert details.keys() >= {"steps", "greedy"}
    assert not any("random numbers" in detail for detail in details.values())


def test_greedy_may_choose_any_token_that_is_likeliest_within_rounding() -> None:
    class Tie(Toy):
        to = CachedModel.to  # type: ignore[assignment]  # in this dtype only

        def _run(self, *given: Any) -> list[Tensor]:
            logits, *weights = super()._run(*given)
            logits[..., 3:5] = 100.0
            return [logits, *weights]

        def feed(self, tokens: Tensor, cache: Any, mask: Tensor | None = None) -> list[Tensor]:
            logits, *weights = super().feed(tokens, cache, mask)
            logits[..., 4] += 0.5  # the next number of bfloat16
            return [logits, *weights]

    assert not failed_results(Tie(dtype=torch.bfloat16), "greedy")


def test_logits_come_first_and_weights_after_them() -> None:
    case = random_case(Toy())
    logits, *weights = case.with_variant("weights").full_pass()
    assert torch.equal(logits, case.full_pass()[0])
    assert logits.abs().max() == 1.0
    assert [tuple(w.shape) for w in weights] == [(3, 1, 9, 9)] * 2
    assert all(torch.allclose(w.sum(-1), torch.ones(()).double()) for w in weights)


def test_our_own_adapter_passes_the_checks_of_anyones_model() -> None:
    report = check_cache(TransformerAdapter(fresh_model().double().eval()))
    assert {result.id for result in report.checks if result.passed} >= {"rollback", "fork", "lengths"}
