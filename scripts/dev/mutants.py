#!/usr/bin/env python3
"""Mutation testing: change one expression or statement, run the tests, and see whether they notice.

First the quick tests run once, to record which of them execute which line; each mutant is then tested by those that
execute its line. No mutant is written to disk. The process imports the libraries once and forks a child for each one,
which imports the mutated module in place of the one in the package. A mutant of the model takes about a second of a
core, one of what trains, translates and reads data five. Of other modules than the model's, only a sample is tested,
always the same one, unless `--sample` says otherwise. The C++ has cpp_mutants.py.
"""

import argparse
import ast
import bisect
import builtins
import copy
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import accumulate, chain
from pathlib import Path
from types import CodeType
from typing import NamedTuple, TypeVar

import coverage
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from minitrans.cli.arguments import positive_int

ROOT = Path(__file__).resolve().parents[2]
MIN_SCORE = 0.95  # share of the mutants that the tests have to notice, the equivalent ones aside

MODULES = [
    "model.masks", "model.cache", "model.dropout", "model.attention", "model.layers", "model.transformer", "model.loss",
    "model.decoding", "model.sampling", "translate.backend", "translate.bundle", "translate.translator",
    "export.ctranslate2", "export.transformers", "compiled.plan", "compiled.probe", "compiled.training",
    "compiled.stepper", "compiled.library", "training.module", "training.checkpoints", "training.callbacks",
    "data.batching", "data.filters", "data.loader", "data.process_group", "cachecheck.measurement",
    "cachecheck.protocol", "cachecheck.cache_checks", "cachecheck.failure_patterns", "cachecheck.faults",
    "cachecheck.runner", "server.queue", "server.app",
]  # fmt: skip
SAMPLE_SIZE_PER_MODULE = 40  # mutants of each module around the model
VERIFY_TESTS_FILE = "test_verify_checks.py"  # the checks of `verify` as tests
TEST_SECONDS_PER_MUTANT = 60  # seconds that all tests of a mutant may take together; the quickest ones come first

settings.register_profile(
    "mutants",
    derandomize=True,
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # no shrinking, which takes minutes: any counterexample will do
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine kills no mutants
)

# Nothing that a verdict does not need: pytest takes longer to start than most tests take.
# Tests that start processes of their own test the code on the disk, and a sabotage of compiled code looks for its lines
# there; tests that compile for lesser processors take long.
PYTEST_OPTIONS = ["-x", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:anyio", "--timeout=0",
                  "-m", "not slow", "-k", "not (lesser_processors or at_random or a_signal_saves or compiled.)",
                  "--hypothesis-profile", "mutants"]  # fmt: skip


Item = TypeVar("Item")


def neighbour_swaps(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Swap each two neighbours in turn."""
    for i in range(len(items) - 1):
        yield [*items[:i], items[i + 1], items[i], *items[i + 2 :]]


def without_one(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Leave out each item in turn."""
    for i in range(len(items)):
        yield [*items[:i], *items[i + 1 :]]


# Mutants that do what the original does, so that no test can notice them: module, changed statement, reason. Where the
# module has another mutant with that statement, the original stands before it.
EQUIVALENT_MUTANTS = {
    "model.masks": {
        "return (k_pos <= q_pos[:, None])[None, None]":
            "the new first axis of size 1 is what broadcasting adds by itself",
        "if mask.dim() != len(scores_shape) or any((m not in (s, 1) for m, s in zip(mask.shape, scores_shape, "
        "strict=True))):":
            "membership does not depend on order",
    },
    "model.cache": {
        **{f"return KVCache(*(x.new_empty(*x.shape[:2], n, x.size(3)) for x in ({two})))":
            "they have one shape and dtype" for two in ("self.v, self.k", "self.v, self.v", "self.k, self.k")
        },
        "end = offset + v.size(2)": "there is a value for each key",
        "for name, buffer in (('v', self.v), ('k', self.k)):": "each is selected by itself",
        "layer.source.select_rows(rows, layer.source.v.size(2))": "there is a value for each key",
    },
    "model.dropout": {
        "_GOLDEN, _MIX_1, _MIX_2 = (c for c in (11400714819323198485, 13787848793156543929, 10723151780598845931))":
            "what does not fit into 64 bits is cut to them",
        **{f"z = torch.arange(1, {end}, device=device).mul_(_GOLDEN).add_(seed)": "more numbers than are used"
            for end in ("(n + 7) * 8 + 1", "(n + 7) // 7 + 1", "(n + 8) // 8 + 1", "n + 7 + 1", "(n + 7) // 8 + 2")
        },
        "if not training or dropped <= 0:": "a probability is not negative",
    },
    "model.attention": {
        "return q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))":
            "queries and keys have the same size, or there is no product",
        "return torch.softmax(filled, dim=-1, dtype=dtype).masked_fill(~mask, 0.0).to(filled.dtype)":
            "filling keeps the dtype",
        "q, k, v = self.project(key, 0, 3)": "the three are one there",
        "q, k, v = self.project(value, 0, 3)": "the three are one there",
        "return heads.permute(2, 0, 3, 1, 4)":
            "unpacking or indexing a tensor takes it apart along dimension 0 as unbind does",
    },
    "model.layers": {
        "position = torch.arange(max_len, device='cpu')[:, None]":
            "the product with a float64 tensor is computed in float64, exactly the same",
        "position = torch.arange(max_len, dtype=torch.float32, device='cpu')[:, None]":
            "float32 is exact for every position below 2**24, and no table is that long",
        "table[:, ::2] = angle.sin()": "0 is where a slice begins by default",
        "for linear in (self.w_2, self.w_1):": "independent random draws in another order have the same distribution",
    },
    "model.transformer": {
        "if self.d_head is not None and self.head_size < 1:": "head_size is d_head where that is given",
        "sizes = (c.d_model, c.n_heads, c.d_head, c.d_ff, c.dropout, c.attention_dropout)":
            "None makes the attention compute the same head size by itself",
        "pasts = [0] * len(self.layers) if cache is None else cache.layers": "a layer asks whether it is true",
        "for table in (self.tgt_embedding, self.src_embedding, self.output):":
            "independent random draws in another order have the same distribution",
        "for table in (self.src_embedding, self.output, self.tgt_embedding):":
            "independent random draws in another order have the same distribution",
        "weight = self.src_embedding.weight": "all weights of a model have one dtype and one device",
        "weight = self.tgt_embedding.weight": "all weights of a model have one dtype and one device",
    },
    "model.loss": {
        "CHUNK_ROWS = 513": "any number of rows gives the same sums",
        "CHUNK_ROWS = 511": "any number of rows gives the same sums",
        "real = (tgt_out != pad_id).flatten().nonzero()[:, -1]": "the only element is the first and the last",
        "losses = [checkpoint(loss_of, *chunk, use_reentrant=False) for chunk in chunks]": "it draws no random numbers",
        "losses = [checkpoint(loss_of, *chunk, use_reentrant=False, preserve_rng_state=True) for chunk in chunks]":
            "it draws no random numbers",
    },
    "model.decoding": {
        "return likeliest_tokens(self.model.step(tokens[:, None], state)[:, -0], n, self.config)":
            "the only element is the first and the last",
        "logits[..., [config.bos_id, config.pad_id]] = -torch.inf": "both columns get the same value",
        "return suppress_pad_bos(logits, config).argmax(1)": "dimension 1 of two is the last",
        "return log_p.gather(-1, ids[..., None])[..., -1]": "the only element is the first and the last",
        "log_p = suppress_pad_bos(F.log_softmax(logits, 1, dtype=torch.promote_types(torch.float32, logits.dtype)), "
        "config)": "dimension 1 of two is the last",
        "rows = range(len(limits))": "it is read alone, and replaced as a whole",
        "tokens = ids[:, -1]": "the only element is the first and the last",
        "log_p, ids = stepper.next_tokens(tokens, cache, 2)": "the likeliest of two is the likeliest",
        "for i, (row, id_, p) in enumerate(zip(rows, tokens.tolist(), log_p[:, -1].tolist(), strict=True)):":
            "the only element is the first and the last",
        "log_probs = torch.zeros(1, len(rows), device=src_ids.device)": "it is flattened before it is read",
        "log_probs = torch.zeros(len(rows), device=src_ids.device)": "it is flattened before it is read",
        "log_probs = torch.zeros(len(rows), 1)": "the tests have no device but the CPU",
        "tokens = src_ids.new_full((len(rows), 1, 1 + longest), config.bos_id)": "what is not written is not read",
        "tokens = src_ids.new_full((len(rows), 1, 1 + longest), config.eos_id)": "what is not written is not read",
        "tokens = src_ids.new_full((len(rows), 1, 2 + longest), config.pad_id)": "what is not written is not read",
        "tokens[...,] = config.bos_id": "what is not written again is not read",
        "continuations, ids = stepper.next_tokens(tokens[..., t].flatten(), cache, 3 * beam)":
            "2K are enough for K that do not end",
        "log_probs, order = (x for x in totals.sort(descending=True, stable=True))":
            "2K are enough for K that do not end",
        "log_probs, order = (x[:, :] for x in totals.sort(descending=True, stable=True))":
            "2K are enough for K that do not end",
        "log_probs, order = (x[:, :3 * beam] for x in totals.sort(descending=True, stable=True))":
            "2K are enough for K that do not end",
        "parents = order // ids.size(1) + tokens.size(1) * torch.arange(len(rows))[:, None]":
            "the tests have no device but the CPU",
        "for r, w in ended[:, :beam].nonzero():": "a number in a tensor of its own serves as an index",
        "for r in (r for r, row in enumerate(rows) if limits[row] <= t + 1):": "rows beyond their limit have left",
        "keep = going": "a list serves as an index",
        "keep = torch.tensor(going)": "the tests have no device but the CPU",
        # Rows as short as those of the tests are sorted stably in any case.
        "log_probs, order = (x[:, :2 * beam] for x in totals.sort(descending=True))": "ties keep their order",
        "log_probs, order = (x[:, :2 * beam] for x in totals.sort(descending=True, stable=False))":
            "ties keep their order",
        "going_on = log_probs.masked_fill(ended, -torch.inf).sort(descending=True)": "ties keep their order",
        "going_on = log_probs.masked_fill(ended, -torch.inf).sort(descending=True, stable=False)":
            "ties keep their order",
    },
    "model.sampling": {
        "choices = zip(draws, ids, log_p.exp().tolist(), strict=True)": "numbers in tensors of their own serve as well",
        "choices = zip(draws, ids.tolist(), log_p.exp(), strict=True)": "numbers in tensors of their own serve as well",
        "tokens = tokens.new_tensor([draw.choices(row, weights)[-1] for draw, row, weights in choices])":
            "the only element is the first and the last",
        "going = (going - 1).masked_fill(tokens == config.eos_id, -1).clamp(min=0)": "the clamp makes it 0",
    },
    "translate.backend": {
        "if mode >= 'require':": "off never gets there, and auto comes before it",
    },
    "compiled.probe": {
        "parameter.add_(torch.randn_like(parameter), alpha=0.05)": "any random numbers will do",
        "with torch.autocast('cpu', enabled=own and dtype == torch.bfloat16):": "that is autocast's dtype",
        "yield from zip(names, other_gradients, gradients, strict=True)": "a difference has no direction",
        "torch.default_generator.manual_seed(0)": "any random numbers will do",
    },
    "compiled.training": {
        "return _Dropout(draw_seed() if dropped else -1, dropped)": "where nothing is dropped no seed is used",
        "return _Dropout(draw_seed() if dropped else 1, dropped)": "where nothing is dropped no seed is used",
    },
    "compiled.stepper": {
        **{f"_fields_ = [(name, c_int64) for name in {tuple(names)}]": "the library knows them by their places"
            for names in neighbour_swaps(["D", "H", "Dh", "F", "L", "V", "pad", "bos"])
        },
        "_fields_ = [('rows', c_int64), ('data', c_void_p)]": "integers and pointers are as long as each other",
        **{("_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {'make': (c_void_p, [_Sizes, _Model]), 'free': (None, "
            "[c_void_p]), 'encode': (c_bool, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]), 'step': (c_bool, [*["
            "c_void_p] * 2, *[c_int64] * 3, *[c_void_p] * 4, _KVBlockPointer, c_int64, c_void_p, c_void_p])}").replace(
            before, after): "integers and pointers are passed alike" for before, after in (
            ("c_int64, c_void_p]), 'step'", "c_void_p, c_int64]), 'step'"),
            ("c_void_p, c_int64, c_void_p]), 'step'", "c_int64, c_void_p, c_void_p]), 'step'"),
            ("*[c_void_p] * 2, *[c_int64] * 3", "*[c_int64] * 3, *[c_void_p] * 2"),
            ("*[c_int64] * 3, *[c_void_p] * 4", "*[c_void_p] * 4, *[c_int64] * 3"),
            ("_KVBlockPointer, c_int64, c_void_p", "_KVBlockPointer, c_void_p, c_int64"),
        )},
        "key = tensor": "a matrix that has several names is one tensor",
        "copies[key] = tensor.to(self._computed, copy=True)": "nobody asks for a gradient",
        "cross = torch.empty(c.n_layers, len(tokens), 3 * c.n_heads * c.head_size, dtype=self.dtype, device='cpu')":
            "more room than is used",
    },
    "compiled.library": {
        **{f"CXX_FLAGS = {['-std=c++17', *flags]}": "as correct, only slower" for flags in without_one(
            ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"]
        )},
        **{f"CXX_FLAGS += {flags}": "as correct, only slower" for flags in (
            "['-mcpu=native']",
            "['-march=native'] if platform.machine() == 'x86_64' else ['-mcpu=native']",
            "['-mprefer-vector-width=512'] if platform.machine() == 'x86_64' else ['-mcpu=native']",
        )},
        "compiler = shlex.split(command) or list(filter(shutil.which, ('c++', 'clang++', 'g++')))[:1]":
            "c++ is one of them",
        "parts = [source.read_bytes(), HEADER_PATH.read_bytes(), CXX_FLAGS, _cpu_features(), compiler]":
            "any key made of the same parts will do",
        "parts += [*map(os.path.realpath, filter(None, map(shutil.which, compiler))), platform.libc_ver()]":
            "any key made of the same parts will do",
        "library = ctypes.CDLL(path)": "CDLL takes paths too",
        "with tempfile.TemporaryDirectory(prefix='compiling-') as folder:": "there is one file system here",
        "words, env = ([*command, '-o', made], os.environ | {'LC_ALL': 'C'})": "subprocess takes paths too",
        "lines = info.read_text().splitlines() if (info := Path('/proc/cpuinfo')) else []": "Linux has the file",
        "return next((line for line in lines if line.startswith(('Features', 'flags'))), platform.machine())":
            "no file has both",
        "assert (a.is_contiguous() for a in arguments if isinstance(a, Tensor))": "all that gets here is contiguous",
        "assert all((a.is_contiguous() for a in () if isinstance(a, Tensor)))": "all that gets here is contiguous",
    },
    "training.module": {
        "if n_processes() > 1:  ->  if True:": "one process alone may draw other random numbers too",
        "if n_processes() > 1:  ->  if n_processes() >= 1:": "one process alone may draw other random numbers too",
        "torch.manual_seed(torch.randint(2 ** 62, (n_processes(),))[rank()])": "a number in a tensor is a seed as well",
        "total_steps = self.trainer.estimated_stepping_batches": "only an infinite one is no integer",
    },
}  # fmt: skip

# What each operator is replaced by.
OPERATOR_REPLACEMENTS = {
    "Lt": "LtE GtE", "LtE": "Lt Gt", "Gt": "GtE LtE", "GtE": "Gt Lt", "Eq": "NotEq LtE GtE", "NotEq": "Eq Lt Gt",
    "Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In", "And": "Or", "Or": "And",
    "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult FloorDiv", "FloorDiv": "Mult Div Mod", "Mod": "FloorDiv",
    "Pow": "Mult", "MatMult": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "BitXor": "BitOr", "RShift": "LShift",
    "LShift": "RShift",
}  # fmt: skip
COMMUTATIVE_OPERATORS = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
SYMMETRIC_FUNCTIONS = ("max", "min", "promote_types", "transpose")  # the order of their arguments does not matter

# Names that are easily confused: each is replaced by the others of its group.
CONFUSABLE_NAMES = """
    min max, any all, sin cos, exp log, argmax argmin, ones_like zeros_like, zeros_ ones_, float32 float64,
    xavier_uniform_ xavier_normal_, softmax log_softmax, ValueError TypeError, causal_mask padding_mask,
    q k v, query key value, k_pos q_pos, scores filled, weight bias, w_qkv w_o, w_1 w_2, first last,
    x attended memory, self_weights cross_weights weights, causal src_mask,
    q_len kv_len offset end, src_len max_len longest, length capacity, n_heads d_head head_size,
    d_model d_ff, vocab_size max_len, dropout attention_dropout, self_norm cross_norm ff_norm, self_attn cross_attn,
    src_ids tgt_ids tgt_in, src_embedding tgt_embedding output, encoder decoder, EncoderLayer DecoderLayer,
    pad_id bos_id eos_id, rows keep
"""
NON_OPERAND_NAMES = {"torch", "math", "nn", "F", "self"}  # a call g.f(x) becomes x if g is one of these, else g

Node = TypeVar("Node", bound=ast.AST)


class Mutant(NamedTuple):
    """A file with one change."""

    path: str  # below the root of the repository
    lines: range  # those of the changed statement, without the statements inside it
    before: str  # the statement, or the line of C++
    after: str  # what it is changed to
    source: str  # the whole mutated file
    equivalent_because: str = ""  # why it does what the original does; empty if it is not known to

    def sort_key(self) -> tuple[str, int, str]:
        """The place of the change, by which mutants are sorted."""
        return self.path, self.lines.start, self.after

    def __str__(self) -> str:
        return f"{self.path}:{self.lines.start}  {self.before}  ->  {self.after}"


class Site(NamedTuple):
    """A node that can be replaced."""

    node: ast.AST
    replace_in_tree: Callable[[ast.AST], None]  # puts another node in its place
    statement: ast.stmt  # that the node is, or is a part of
    binding_counts: Counter[str]  # how often each name is bound there


def copy_with(node: Node, **fields: object) -> Node:
    """Copy a node with some fields changed."""
    other = copy.copy(node)
    vars(other).update(fields)
    return other


def confusable_names(name: str) -> set[str]:
    """The names that are easily confused with this one."""
    return {other for family in CONFUSABLE_NAMES.split(",") if name in family.split() for other in family.split()} - {
        name
    }


def other_operators(op: ast.AST) -> Iterator[ast.AST]:
    """What an operator is replaced by."""
    return (getattr(ast, name)() for name in OPERATOR_REPLACEMENTS[type(op).__name__].split())


def count_bindings(tree: ast.AST) -> Counter[str]:
    """How often each name is bound, as an argument, by an assignment, or by an import."""
    names: Counter[str] = Counter()
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.alias(name=name):
                names[name] += 1
    return names


def mutate_expression(node: ast.AST, names: Counter[str]) -> Iterator[ast.AST]:
    """What an expression may be replaced by."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            known = sorted(other for other in confusable_names(name) if other in names or hasattr(builtins, other))
            yield from (copy_with(node, id=other) for other in known)
        case ast.Attribute(attr=name, ctx=ast.Load()):
            yield from (copy_with(node, attr=other) for other in sorted(confusable_names(name)))
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value / 2))
        case ast.Constant(value=None):
            yield ast.Constant(0)
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield from (copy_with(node, ops=[*ops[:i], other, *ops[i + 1 :]]) for other in other_operators(op))
        case ast.BinOp(left=left, op=op, right=right):
            yield from (left, right)
            yield from (copy_with(node, op=other) for other in other_operators(op))
            if not isinstance(op, COMMUTATIVE_OPERATORS):
                yield copy_with(node, left=right, right=left)
        case ast.BoolOp(op=op, values=values):
            yield from (copy_with(node, op=other) for other in other_operators(op))
            yield from (copy_with(node, values=fewer) for fewer in without_one(values))
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse, copy_with(node, body=orelse, orelse=body))
        case ast.Slice():
            yield from (copy_with(node, lower=None), copy_with(node, upper=None))
        case ast.Subscript(value=value, ctx=ast.Load()):
            yield value
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            if not isinstance(node, ast.Set):
                yield from (copy_with(node, elts=other) for other in neighbour_swaps(items))
            is_index = any(isinstance(item, ast.Slice) for item in items)
            if len(items) > 1 and not is_index and not isinstance(getattr(node, "ctx", None), ast.Store):
                yield from (copy_with(node, elts=fewer) for fewer in without_one(items))
        case ast.Call(func=func, args=args, keywords=keywords):
            if ast.unparse(func) != "zip":
                yield from (copy_with(node, keywords=fewer) for fewer in without_one(keywords))
            if ast.unparse(func).rpartition(".")[2] not in SYMMETRIC_FUNCTIONS:
                yield from (copy_with(node, args=other) for other in neighbour_swaps(args))
            if len(args) > 1:
                yield copy_with(node, args=args[:-1])
            if isinstance(func, ast.Attribute) and ast.unparse(func).split(".")[0] not in NON_OPERAND_NAMES:
                yield func.value
            elif args:
                yield args[0]
        case ast.comprehension(ifs=conditions):
            yield copy_with(node, iter=ast.Tuple([]))
            yield from (copy_with(node, ifs=fewer) for fewer in without_one(conditions))


def mutate_statement(node: ast.AST, names: Counter[str]) -> Iterator[ast.AST]:
    """What a statement may be replaced by."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return
        case ast.Expr() | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=targets):
            # Where a name is bound nowhere else, every test fails without it, which shows nothing.
            if all(names[name] > 1 for target in targets for name in count_bindings(target)):
                yield ast.Pass()
        case ast.AugAssign(target=target, op=op, value=value):
            yield from (ast.Pass(), ast.Assign([target], value, lineno=0))
            yield from (copy_with(node, op=other) for other in other_operators(op))
        case ast.Return(value=ast.AST()):
            yield ast.Return()
        case ast.Break() | ast.Continue():
            yield from (ast.Continue(), ast.Break(), ast.Pass())
        case ast.For():
            yield copy_with(node, iter=ast.Tuple([]))
        case ast.If(test=test) | ast.While(test=test):
            yield from (copy_with(node, test=ast.Constant(always)) for always in (True, False))
            if not isinstance(test, ast.Compare):  # which has its opposite operator
                yield copy_with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.FunctionDef(decorator_list=decorators) | ast.ClassDef(decorator_list=decorators):
            yield from (copy_with(node, decorator_list=fewer) for fewer in without_one(decorators))


def is_not_mutated(parent: ast.AST, field: str, child: object) -> bool:
    """Whether a field is left alone: an import, a string, a type, which does nothing at run time, or a mere check."""
    match parent, child:
        case ast.Call(func=ast.Name("zip")), ast.keyword():  # its only one, `strict`, says that lengths agree
            return True
        case _, ast.Assign(value=ast.Call(func=ast.Name("TypeVar")) | ast.Subscript(value=ast.Name("Callable"))):
            return True
        case _, ast.ClassDef(bases=[ast.Name("Protocol") | ast.Subscript(value=ast.Name("Protocol"))]):
            return True
        case ast.Call(func=ast.Name("cast"), args=[kind, *_]), _ if child is kind:
            return True
        case ast.Compare(), ast.Constant(value=None):  # nobody writes "is 0" by mistake
            return True
        case _, ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
    return field in ("annotation", "returns") or not isinstance(child, ast.AST)


def sites(node: ast.AST, names: Counter[str], statement: ast.stmt | None = None) -> Iterator[Site]:
    """List the nodes below one that can be replaced."""
    for field, value in ast.iter_fields(node):
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if is_not_mutated(node, field, child):
                continue
            known = names + count_bindings(child) if isinstance(child, ast.FunctionDef) else names
            around = child if isinstance(child, ast.stmt) else statement
            assert around is not None
            put = partial(value.__setitem__, i) if isinstance(value, list) else partial(setattr, node, field)
            yield Site(child, put, around, known)
            yield from sites(child, known, around)


def headline(statement: ast.AST) -> str:
    """A statement in one line, without the statements inside it."""
    empty: dict[str, list[ast.stmt]] = {field: [] for field in ("body", "orelse") if hasattr(statement, field)}
    return " ".join(ast.unparse(copy_with(statement, **empty)).split("\n"))


def lines_of_statement(statement: ast.stmt) -> range:
    """The lines of a statement, without the statements inside it."""
    inside = [line.lineno for line in ast.walk(statement) if isinstance(line, ast.stmt) and line is not statement]
    end = statement.end_lineno or statement.lineno
    return range(statement.lineno, max(statement.lineno + 1, min([*inside, end + 1])))


def make_mutants(module: str, source: str) -> Iterator[Mutant]:
    """Make every mutant of a module, each once."""
    tree = ast.parse(source)
    imported = Counter[str]()
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            imported += count_bindings(node)
    seen = {ast.unparse(tree)}
    equivalent = EQUIVALENT_MUTANTS.get(module, {})
    for site in sites(tree, imported):
        before = headline(site.statement)
        for make in (mutate_expression, mutate_statement):
            for other in make(site.node, site.binding_counts):
                site.replace_in_tree(other)
                mutated, after = ast.unparse(tree), headline(other if site.node is site.statement else site.statement)
                site.replace_in_tree(site.node)
                if mutated not in seen:
                    seen.add(mutated)
                    why = equivalent.get(after) or equivalent.get(f"{before}  ->  {after}", "")
                    if before == f"@staticmethod {after}":
                        why = "a function that is taken from its class is not bound"
                    lines = lines_of_statement(site.statement)
                    yield Mutant(module_path(module), lines, before, after, mutated, why)


def sample_mutants(made: list[Mutant], n: int) -> list[Mutant]:
    """Take n of them in their order, the same every time; all if there are no more."""
    kept = random.Random(0).sample(range(len(made)), min(n, len(made)))
    return [made[i] for i in sorted(kept)]


def module_path(module: str) -> str:
    """The file of a module, below the root of the repository."""
    return f"minitrans/{module.replace('.', '/')}.py"


def patch_loader_with_mutant(mutant: Mutant) -> None:
    """Have the mutated module imported in place of the one in the package."""
    name, get_code = mutant.path.removesuffix(".py").replace("/", "."), SourceFileLoader.get_code

    def mutated(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if fullname == name:
            return compile(mutant.source, self.path, "exec")
        return get_code(self, fullname)

    SourceFileLoader.get_code = mutated  # type: ignore[method-assign, assignment]


class ExecutedLinesPlugin:
    """A plugin of pytest: which tests execute which lines, by themselves and in their fixtures, and for how long."""

    def __init__(self) -> None:
        self.coverage = coverage.Coverage(data_file=None, source=[str(ROOT / "minitrans")], config_file=False)
        self.context = ""
        self.fixtures: dict[str, list[str]] = {}  # of each test, by its node id
        self.seconds: dict[str, float] = {}  # that each test takes

    @contextmanager
    def recording_for(self, context: str) -> Iterator[None]:
        """Note the lines that are executed meanwhile as executed by a test or a fixture."""
        before, self.context = self.context, context
        self.coverage.switch_context(context)
        try:
            yield
        finally:
            self.context = before
            self.coverage.switch_context(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Generator[None, object, object]:
        """Note the lines of a test."""
        self.fixtures[item.nodeid] = item.fixturenames
        start = time.perf_counter()
        with self.recording_for(item.nodeid):
            result = yield
        self.seconds[item.nodeid] = time.perf_counter() - start
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Note the lines of a fixture, which all tests execute that use it."""
        with self.recording_for(f"fixture {fixturedef.argname}"):
            return (yield)

    def tests_by_line(self, path: str) -> dict[int, list[str]]:
        """The tests that execute each line of a file; all of them for a line that is executed when it is imported."""
        contexts = self.coverage.get_data().contexts_by_lineno(str(ROOT / path))
        everywhere = {*chain.from_iterable(contexts.values())}
        own = {test: {test, *(f"fixture {name}" for name in names)} for test, names in self.fixtures.items()}
        return {
            line: [test for test in own if not own[test].isdisjoint(everywhere if "" in names else names)]
            for line, names in contexts.items()
        }


def test_paths(folder: str) -> list[str]:
    """The tests of the modules in a folder: those in the folder of that name and, except for the model, two files."""
    others = [] if folder == "model" else ["test_refusals.py", f"model/{VERIFY_TESTS_FILE}"]
    return [str(ROOT / "tests" / name) for name in (folder, *others)]


def record_tests(folder: str, modules: Sequence[str], results_folder: Path) -> int:
    """Run a folder's quick tests, and note in a file which of them execute which line; return 0 if they pass."""
    executed = ExecutedLinesPlugin()
    executed.coverage.start()
    for module in modules:
        import_module(f"minitrans.{module}")
    failed = pytest.main([*PYTEST_OPTIONS, *test_paths(folder)], plugins=[executed])
    executed.coverage.stop()
    tests = {path: executed.tests_by_line(path) for path in map(module_path, modules)}
    (results_folder / f"{folder}.json").write_text(json.dumps([tests, executed.seconds]), encoding="utf-8")
    return failed


def choose_tests(
    mutant: Mutant, tests: Mapping[str, Mapping[str, Sequence[str]]], seconds_by_test: Mapping[str, float]
) -> dict[str, float]:
    """The tests that execute a mutant's lines, and the seconds that each takes: first the checks, then the quickest."""
    executing = {test for line in mutant.lines for test in tests[mutant.path].get(str(line), ())}
    quickest = sorted(executing, key=lambda test: (VERIFY_TESTS_FILE not in test, seconds_by_test[test]))
    in_time = bisect.bisect(list(accumulate(map(seconds_by_test.__getitem__, quickest))), TEST_SECONDS_PER_MUTANT)
    return {test: seconds_by_test[test] for test in quickest[: max(1, in_time)]}


class FailurePlugin:
    """A plugin of pytest that appends each failed test to a file, which the processes share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure."""
        if report.failed:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def run_tests(mutant: Mutant, tests: Mapping[str, float], failures: Path) -> int:
    """Run tests on a mutant; return 0 if they all pass.

    Those that noticed most mutants so far run first, as they are likely to notice this one too.
    """
    signal.alarm(60 + 10 * int(sum(tests.values())))  # ends the process
    noticed = Counter(failures.read_text(encoding="utf-8").splitlines())
    patch_loader_with_mutant(mutant)
    paths = [f"{ROOT}/{test}" for test in sorted(tests, key=lambda test: -noticed[test])]
    return bool(tests) and pytest.main([*PYTEST_OPTIONS, *paths], plugins=[FailurePlugin(failures)])


def import_test_libraries(folders: Iterable[str]) -> None:
    """Import what the tests use of the libraries, so that no child has to."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        pytest.main([*PYTEST_OPTIONS, "--collect-only", *{path for folder in folders for path in test_paths(folder)}])
    bench_and_tests = str(ROOT / "scripts" / "bench"), str(ROOT / "tests")
    for name, module in list(sys.modules.items()):  # test helpers have imported the package, too
        if name.split(".")[0] == "minitrans" or (getattr(module, "__file__", None) or "").startswith(bench_and_tests):
            del sys.modules[name]


def run_jobs(items: Iterable[Item], work: Callable[[Item], int], jobs: int) -> Iterator[tuple[Item, bool]]:
    """Fork a silent child for each item, some at a time; yield it and whether its work returned 0, as they end."""
    running: dict[int, Item] = {}
    for item in items:
        if len(running) == jobs:
            yield wait_for_child(running)
        if pid := os.fork():
            running[pid] = item
            continue
        try:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
            os._exit(work(item))
        finally:
            os._exit(1)
    while running:
        yield wait_for_child(running)


def wait_for_child(running: dict[int, Item]) -> tuple[Item, bool]:
    """Wait for any child; return its item and whether the child exited with 0."""
    pid, status = os.wait()
    return running.pop(pid), status == 0


def report_survivors_and_scores(survivors: Sequence[Mutant], killed: Sequence[Mutant]) -> int:
    """Print the survivors and the scores; return 0, or 1 if the score is too low or `EQUIVALENT_MUTANTS` is wrong."""
    for mutant in sorted(survivors, key=Mutant.sort_key):
        print(f"{mutant}\n    {mutant.equivalent_because or 'SURVIVED'}")
    missed = Counter(mutant.path for mutant in survivors if not mutant.equivalent_because)
    noticed = Counter(mutant.path for mutant in killed)
    for path in noticed | missed:
        print(f"{path} {noticed[path]}/{noticed[path] + missed[path]}", end=", ")
    total = noticed.total() + missed.total()
    print(f"score {noticed.total() / max(1, total):.1%} ({noticed.total()} killed of {total})")
    wrong = [mutant for mutant in killed if mutant.equivalent_because]
    for mutant in sorted(wrong, key=Mutant.sort_key):
        print(f"not equivalent: {mutant}")
    return int(noticed.total() < MIN_SCORE * total or bool(wrong))


def main(argv: Sequence[str] | None = None) -> int:
    """Test the tests; return 0, 1 if they miss too much or `EQUIVALENT_MUTANTS` is wrong, or 2 if they fail anyway."""
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument(
        "--sample", type=positive_int, metavar="N", help=f"per module; default {SAMPLE_SIZE_PER_MODULE}, the model: all"
    )
    parser.add_argument("--jobs", type=positive_int, default=os.cpu_count(), metavar="N", help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="list the mutants instead")
    arguments = parser.parse_args(argv)
    modules = arguments.modules or MODULES
    if not set(modules) <= set(MODULES):
        parser.error(f"choose from {', '.join(MODULES)}")
    mutated, originals = [], []
    for module in modules:
        source = (ROOT / module_path(module)).read_text(encoding="utf-8")
        made = [*make_mutants(module, source)]
        n = arguments.sample or (len(made) if module.startswith("model.") else SAMPLE_SIZE_PER_MODULE)
        mutated += sample_mutants(made, n)
        everywhere = range(1, 1 + source.count("\n"))
        originals.append(Mutant(module_path(module), everywhere, "", "", ast.unparse(ast.parse(source))))
    if arguments.list:
        print(*mutated, sep="\n")
        return 0

    torch.set_num_threads(1)  # of each child; more would wait for each other
    sys.path.insert(0, str(ROOT))  # this package, whichever is installed
    folders = defaultdict[str, list[str]](list)
    for module in modules:
        folders[module.split(".")[0]].append(module)
    with tempfile.TemporaryDirectory() as name:
        results = Path(name)
        import_test_libraries(folders)
        gc.freeze()  # what is imported so far need not be searched for garbage by each child

        def record(folder: str) -> int:
            return record_tests(folder, folders[folder], results)

        for folder, passed in run_jobs(folders, record, arguments.jobs):
            if not passed:
                print(f"the quick tests in tests/{folder} fail on the unmutated code", file=sys.stderr)
                return 2
        tests: dict[str, dict[str, list[str]]] = {}  # of each file those that execute each line
        seconds: dict[str, float] = {}
        for path in results.glob("*.json"):
            executing, taken = json.loads(path.read_text(encoding="utf-8"))
            tests |= executing
            seconds |= taken

        failures = results / "failures.txt"
        failures.touch()

        def test(mutant: Mutant) -> int:
            return run_tests(mutant, choose_tests(mutant, tests, seconds), failures)

        for original, survived in run_jobs(originals, test, arguments.jobs):
            if not survived:
                print(f"the tests of {original.path} fail on the unmutated code", file=sys.stderr)
                return 2
        survivors: list[Mutant] = []
        killed: list[Mutant] = []
        for mutant, survived in run_jobs(mutated, test, arguments.jobs):
            (survivors if survived else killed).append(mutant)
            print(f"\r{len(survivors) + len(killed)} of {len(mutated)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return report_survivors_and_scores(survivors, killed)


if __name__ == "__main__":
    sys.exit(main())
