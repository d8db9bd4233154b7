#!/usr/bin/env python3
"""Published bugs of caches in old releases of `transformers`: whether the checks for any model catch them.

It writes docs/history.md from hf_bugs.yaml: two minutes on two free cores, and ten the first time, to install
some fifteen releases (100 MB each, from the package registry), which a `--releases` folder keeps. Each release is put
in a folder of its own, before the installed packages on PYTHONPATH, and run with the installed torch. Exit code 1: a
bug is missed without a reason, or has a reason though it is caught.

The checks know none of the bugs. They run on a small random model of the architecture, through the cache that the
release makes by itself, or that the list names; what they report on the release with the bug is compared with what they
report on the one with the fix.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn

from minitrans.cachecheck import CachedModel, NotOfferedError, run
from minitrans.cachecheck.measurement import dtype_tolerance, to_str

BUGS_FILE = Path(__file__).with_name("hf_bugs.yaml")
ROOT = Path(__file__).resolve().parents[2]
PAGE_FILE = ROOT / "docs" / "history.md"
ISSUES_URL = "https://github.com/huggingface/transformers/issues/"
VOCAB_SIZE = 53
SPAN_ATTRIBUTES = "sliding_window", "attention_window_size", "attention_chunk_size", "chunk_size", "mamba_chunk_size"
CAUSE_PREFIX = "this looks like: "


class Bug(NamedTuple):
    """A published bug."""

    issues: list[int]  # numbers of the issue and the pull request
    what: str  # what was wrong
    architecture: str  # as `transformers` calls it
    bad: str  # a release that has it
    fixed: str  # one that does not
    settings: dict[str, Any]  # of the small model
    cache: str = ""  # its class, where the release has it; else, or if empty, what the model makes by itself
    dtype: str = "float64"  # in which it is measured; another where a release cannot compute in it
    missed: str = ""  # why it is not caught; empty if it is


class Outcome(NamedTuple):
    """What a check reported; `measured` is None where the check was not offered."""

    measured: float | None
    passed: bool
    detail: str

    @property
    def clearly_fails(self) -> bool:
        """Whether it failed by more than rounding in float32, which parts of some models compute in."""
        return not self.passed and self.measured is not None and not self.measured <= dtype_tolerance(torch.float32)


class AnyReleaseModel(CachedModel[list[Any]]):
    """A model of any release; it uses only what the interface has had for years."""

    refusal = Exception  # the caches refuse, each in its own way

    def __init__(self, model: Any, cache: str = "", *, mask_alone: bool = False, records: bool = False) -> None:
        """Take the model and the class of its cache; `records` has a cache record what a rollback needs."""
        config = model.config
        self.model, self._cache, self._mask_alone, self._records = model.eval(), cache, mask_alone, records
        self._takes = set(inspect.signature(model.forward).parameters)
        self._name = next(name for name in ("past_key_values", "cache_params", "state") if name in self._takes)
        self.dtype = next(model.parameters()).dtype
        self.has_source = config.is_encoder_decoder
        self.takes_mask = not self.has_source and "attention_mask" in self._takes
        self.ordinary, self.first = range(3, VOCAB_SIZE), 2 if self.has_source else None
        self.max_len = getattr(config, "max_position_embeddings", None)
        config = getattr(config, "decoder", config)
        self.window_sizes = sorted(
            {span for name in SPAN_ATTRIBUTES if isinstance(span := getattr(config, name, None), int) and span}
        )
        self.variants = {
            "static": lambda: AnyReleaseModel(model, "StaticCache"),
            "mask alone": lambda: AnyReleaseModel(model, cache, mask_alone=True),
            "rollback": lambda: AnyReleaseModel(model, cache, records=True),
        }

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's output, and the mask."""
        output = self.model.get_encoder()(input_ids=src_ids, attention_mask=src_mask.long(), return_dict=True)
        return output.last_hidden_state, src_mask.long()

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """The logits without a cache."""
        return [self._call_model(memory, tokens, mask, use_cache=False).logits]

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> list[Any]:
        """Their cache, None for the model to make one; the memory; the mask; the number of tokens so far."""
        import transformers

        cache, homes = None, (sys.modules[type(self.model).__module__], transformers)
        if made := next((getattr(home, self._cache) for home in homes if hasattr(home, self._cache)), None):
            sizes = {"max_batch_size": n_rows, "batch_size": n_rows, "max_cache_len": capacity}
            given = {"config": self.model.config, "dtype": self.dtype, "device": "cpu", **sizes}
            takes = inspect.signature(made.__init__).parameters
            cache = made(**{key: value for key, value in given.items() if key in takes})
        if self._records and hasattr(transformers.DynamicCache, "activate_past_recording"):
            cache = transformers.DynamicCache(config=self.model.config)
            cache.activate_past_recording()
        if cache is not None and self.has_source:
            cache = transformers.EncoderDecoderCache(cache, transformers.DynamicCache())
        return [cache, memory, None, 0]

    def feed(self, tokens: Tensor, cache: list[Any], mask: Tensor | None = None) -> list[Tensor]:
        """The logits with the cache; models with cache_params take the mask of what is fed, others of all so far."""
        hf_cache, memory, seen, fed = cache
        options: dict[str, Any] = {"use_cache": True, self._name: hf_cache}
        now = mask if tokens.size(1) > 1 else None
        if mask is not None:
            seen = mask if seen is None else torch.cat([seen, mask], 1)
        if fed and "cache_position" in self._takes:
            options["cache_position"] = torch.arange(fed, fed + tokens.size(1))
        output = self._call_model(memory, tokens, seen if self._name == "past_key_values" else now, **options)
        cache[:] = output[self._name], memory, seen, fed + tokens.size(1)
        return [output.logits]

    def _call_model(self, memory: Any, tokens: Tensor, mask: Tensor | None, **options: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        if memory is not None:
            options.update(encoder_outputs=BaseModelOutput(memory[0]), attention_mask=memory[1])
            return self.model(decoder_input_ids=tokens, return_dict=True, **options)
        if mask is not None:
            options["attention_mask"] = mask.long()
            if not self._mask_alone and "position_ids" in self._takes:
                options["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.size(1) :].contiguous()
        return self.model(tokens, return_dict=True, **options)

    def select_rows(self, cache: list[Any], rows: Tensor) -> list[Any]:
        """Select rows as beam search does: by the cache's own method, or the model's."""
        hf_cache, memory, seen, fed = cache
        if hasattr(hf_cache, "reorder_cache"):
            hf_cache.reorder_cache(rows)
        else:
            hf_cache = self.model._reorder_cache(hf_cache, rows)
        return [hf_cache, memory and tuple(x[rows] for x in memory), seen if seen is None else seen[rows], fed]

    def drop_last(self, cache: list[Any], n: int) -> list[Any]:
        """Drop tokens by `crop`, unless the cache says that it cannot."""
        hf_cache, memory, seen, fed = cache
        if not getattr(hf_cache, "is_croppable", hasattr(hf_cache, "crop")):
            raise NotOfferedError("its cache cannot be cropped")
        hf_cache.crop(-n)
        return [hf_cache, memory, seen if seen is None else seen[:, :-n], fed - n]

    def embedding(self) -> nn.Module:
        """The input embedding of a decoder-only model; of an encoder-decoder, not offered."""
        return super().embedding() if self.has_source else self.model.get_input_embeddings()


def read_bugs(path: Path = BUGS_FILE) -> list[Bug]:
    """Read the list of bugs."""
    return [Bug(**bug) for bug in yaml.safe_load(path.read_text(encoding="utf-8"))["bugs"]]


def run_checks_on_bug(bug: Bug) -> dict[str, Outcome]:
    """What each check reports on a small random model in the release that is imported."""
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = transformers.CONFIG_MAPPING[bug.architecture](**{"vocab_size": VOCAB_SIZE, **ids, **bug.settings})
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_config(config).to(getattr(torch, bug.dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    checks = run(AnyReleaseModel(model, bug.cache)).checks
    worst = {
        r.id: r.failed_measurement.measured if r.failed else max(m.measured for m in r.by_dtype.values())
        for r in checks
        if r.offered
    }
    return {r.id: Outcome(worst.get(r.id), r.passed, r.detail) for r in checks}


def measure_in_release(release: str, bugs: Sequence[Bug], releases_dir: Path) -> list[dict[str, Outcome]]:
    """Run the checks on each of some bugs in a release, which is installed first if need be."""
    folder = releases_dir / release
    if not (folder / "installed").exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder)]
        subprocess.run([*install, "--upgrade", f"transformers=={release}"], check=True)
        (folder / "installed").touch()
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", json.dumps([bug._asdict() for bug in bugs])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    print(release, file=sys.stderr)
    return [
        {id_: Outcome(*each) for id_, each in checks.items()} for checks in json.loads(done.stdout.splitlines()[-1])
    ]


def catching_checks(bad: Mapping[str, Outcome], fixed: Mapping[str, Outcome]) -> list[str]:
    """The checks that fail where the bug is, and pass where it is fixed."""
    return [
        id_
        for id_, check in bad.items()
        if check.clearly_fails and fixed[id_].measured is not None and not fixed[id_].clearly_fails
    ]


def table_row(bug: Bug, bad: Mapping[str, Outcome], fixed: Mapping[str, Outcome]) -> str:
    """A line of the table."""
    issues = ", ".join(f"[#{issue}]({ISSUES_URL}{issue})" for issue in bug.issues)
    start = f"| {issues}: {bug.what} | {bug.architecture} | {bug.bad} | {bug.fixed} |"
    by = catching_checks(bad, fixed)
    if not by:
        return f"{start} no | {bug.missed} | – | – | {remaining_failures(fixed)} |"
    named = dict.fromkeys(bad[id_].detail.split(CAUSE_PREFIX)[1] for id_ in by if CAUSE_PREFIX in bad[id_].detail)
    listed = ", ".join(f"`{id_}`" for id_ in by[:3]) + (f" and {len(by) - 3} more" if len(by) > 3 else "")
    deviations = " | ".join(to_str(results[by[0]].measured) for results in (bad, fixed))
    return f"{start} {listed} | {'; '.join(named) or '–'} | {deviations} | {remaining_failures(fixed)} |"


def remaining_failures(fixed: Mapping[str, Outcome]) -> str:
    """What fails on the fixed release too."""
    return ", ".join(f"`{id_}` {to_str(one.measured)}" for id_, one in fixed.items() if one.clearly_fails) or "nothing"


INTRODUCTION = """
# Published bugs of caches, and whether the checks catch them

Every row is a bug that was reported or fixed in public. [The checks](your-model.md) ran on a small random model in a
release of transformers that has the bug and in a later one that does not, with torch {torch}. They know nothing
of these bugs. A check catches a bug if it fails in the first release, by more than float32 rounding, and not in the
second. The deviations are those of the first such check, in shares of the largest logit, in float64 unless
`scripts/dev/hf_bugs.yaml` says float32. "Named" is the cause that the numbers suggest; "left" is what fails even
after the fix. {n_caught} of {n} are caught, {n_clean} of these with nothing left. `scripts/dev/hf_bugs.py` made this.

| bug | architecture | in | fixed in | caught by | named | with the bug | fixed | left |
|---|---|---|---|---|---|---|---|---|
"""


def render_page(rows: Sequence[tuple[Bug, Mapping[str, Outcome], Mapping[str, Outcome]]]) -> str:
    """The page."""
    caught = [fixed for _, bad, fixed in rows if catching_checks(bad, fixed)]
    counts = {"n": len(rows), "n_caught": len(caught), "n_clean": [*map(remaining_failures, caught)].count("nothing")}
    head = INTRODUCTION.format(torch=torch.__version__.split("+")[0], **counts).lstrip()
    return head + "".join(f"{table_row(*each)}\n" for each in rows)


def unexpected_outcomes(rows: Sequence[tuple[Bug, Mapping[str, Outcome], Mapping[str, Outcome]]]) -> Iterator[str]:
    """The bugs that are missed without a reason, or have a reason without being missed."""
    for bug, bad, fixed in rows:
        if bool(catching_checks(bad, fixed)) == bool(bug.missed):
            yield f"{bug.architecture} {bug.issues}: {'caught, but said to be missed' if bug.missed else 'missed'}"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; return 0, or 1 if it leaves a question open."""
    parser = argparse.ArgumentParser(description="Check published bugs of caches in old releases of transformers.")
    parser.add_argument("issues", nargs="*", type=int, metavar="NUMBER", help="only these, without writing")
    parser.add_argument("--releases", type=Path, default=ROOT / "runs/transformers", metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=PAGE_FILE, metavar="FILE")
    parser.add_argument("--measure", metavar="BUG", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure:
        print(json.dumps([run_checks_on_bug(Bug(**bug)) for bug in json.loads(arguments.measure)]))
        return 0
    bugs = [bug for bug in read_bugs() if not arguments.issues or set(arguments.issues) & set(bug.issues)]
    if unknown := set(arguments.issues).difference(*(bug.issues for bug in bugs)):
        parser.error(f"there is no bug with the number {min(unknown)}")
    releases = sorted({release for bug in bugs for release in (bug.bad, bug.fixed)})
    bugs_by_release = [[bug for bug in bugs if release in (bug.bad, bug.fixed)] for release in releases]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(measure_in_release, releases, bugs_by_release, [arguments.releases] * len(releases)))
    said = {
        (release, *bug.issues): checks
        for release, those, answer in zip(releases, bugs_by_release, answers, strict=True)
        for bug, checks in zip(those, answer, strict=True)
    }
    rows = [(bug, said[bug.bad, *bug.issues], said[bug.fixed, *bug.issues]) for bug in bugs]
    if arguments.issues:
        print(*(table_row(*each) for each in rows), sep="\n")
    else:
        arguments.output.write_text(render_page(rows), encoding="utf-8")
    open_ = list(unexpected_outcomes(rows))
    print(*open_, sep="\n", end="\n" * bool(open_))
    return int(bool(open_))


if __name__ == "__main__":
    sys.exit(main())
