"""Hugging Face's models as the checks see them: any encoder-decoder, and any decoder-only model.

The only file here that needs `transformers`. Nothing is loaded from the network but a model named as on the hub.
"""

import copy
import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.cachecheck.measurement import NotOfferedError, one_line_message
from minitrans.cachecheck.protocol import N_BEAMS, CachedModel, LoadError, call_model
from minitrans.cachecheck.runner import random_case

try:
    import transformers
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.models.auto import modeling_auto
except ImportError as error:
    if isinstance(error, ModuleNotFoundError) and error.name == "transformers":
        raise LoadError("transformers is not installed; install this package with its extra `hf`") from error
    cause: Exception = error
    while isinstance(cause.__cause__, Exception):  # the outer error hides which library is missing
        cause = cause.__cause__
    raise LoadError(f"transformers cannot be imported: {one_line_message(cause)}") from error

SMALL_VOCAB_SIZE = 53  # pieces of a small model
SMALL_MAX_LEN = 96  # its positions
SMALL_WINDOW = 8  # its windows and blocks
SPECIAL_ID_SUFFIXES = "token_id", "token_index"  # endings of the names of settings that hold ids of special tokens
START_KEYS = "decoder_start_token_id", "bos_token_id", "pad_token_id"  # the first that is set begins targets
MAX_LEN_KEYS = "max_position_embeddings", "n_positions", "max_decoder_position_embeddings"
WINDOW_KEYS = "sliding_window", "window_size", "local_window_size", "attention_chunk_size"

# The sizes of small models: a setting takes the number beside the first pattern that matches its whole name, unless it
# is smaller already. Heads and states agree: 32 = 4 * 8, and 2 * 32 = 8 * 8. Windows and blocks are short, so that
# sentences cross them.
SIZE_CAPS: dict[str, int] = {
    r".*vocab(_size)?(_.*)?": SMALL_VOCAB_SIZE,
    r"num_kv_shared_layers|ple_layer_ids": 0,
    r"\w*(dense_replace|dense_layers|_offset|topk_groups?|topk_blocks|random_blocks|indexer_kv_heads)": 1,
    r"\w*(_period|_interval|_every_n_layers|_pattern|layer_group_size|mult|per_attn_res_block)": 2,
    r"\w*(_filters|_compress_ratio)": 2,
    r"\w*(top_?k|per_tok(en)?|_k|num_key_value_heads|kv_heads|key_heads|n?_groups?|ngram_size|_cycles|_iters)": 2,
    r"\w*mamba\w*_(n_|num_)?heads|o_groups": 8,
    r"\w*(n|num)_(\w+_)?heads?(_per_layer)?|attention_heads|heads_per_ngram": 4,
    r"(n|num)_\w*centroids|\w*experts?(_num)?|\w*(d_state|state_size)|\w*block_size|local_radius|patch_size": 4,
    r"\w*(head_?dim|head_size|d_head|dim_head|d_kv|kv_channels|rotary_dim|rank|d_rel)": SMALL_WINDOW,
    r"\w*(window|window_size|window_len|chunk_size|chunk_length|_budget)|local_attention|index_topk": SMALL_WINDOW,
    r"relative_attention_num_buckets|\w*lowrank|image_size|\w*block_multiple_of": SMALL_WINDOW,
    r"relative_attention_max_distance": 20,
    r"(\w+_)?(num_|n_)?(\w+_)?(layers?|layers_per_stack|num_blocks|depth)": 2,
    r"\w*(intermediate_size(_\w+)?|ffn_dim|d_ff|dff|dim_ff|d_inner|n_inner|ffn_hidden_size|feed_forward_size)": 48,
    r"\w*d_ssm": 64,
    r"\w*(d_model|hidden_size(_\w+)?|n_embd|dim|dim_model|embedding_size|lru_width|dim_model_base|input_size)": 32,
    r"(?!original)\w*(positions?(_embeddings)?|_ctx|seq_len|seq_length|context_length|model_max_length)": SMALL_MAX_LEN,
    r"rel_extent|floor_scale|\w*n_floor|mem_len": SMALL_MAX_LEN,
}
# Settings that small models are given whatever the architecture's defaults are.
FIXED_SETTINGS: dict[str, object] = {
    **dict.fromkeys(["head_dim", "sliding_window"], SMALL_WINDOW),
    "num_key_value_heads": 2,
    "n_inner": 48,
    "attn_layer_indices": [1],
    "expert_capacity": 1000,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "initializer_range": 0.1,
}

# What else small models of some architectures need, because their own defaults do not make a model.
ARCHITECTURE_SETTINGS: dict[str, dict[str, object]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "prophetnet": {"pad_token_id": 0, "bos_token_id": 1},  # its steps take no other padding
    "xmod": {"default_language": "en_XX"},
}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
UNGROUPED_HEAD_SETTINGS: dict[str, object] = {"num_key_value_heads": 4, "num_heads": 8}
# Further settings, tried one after another until a model can be made and computes a full pass.
SETTING_ATTEMPTS: list[dict[str, Any]] = [
    {},
    {"given": UNGROUPED_HEAD_SETTINGS},
    {"given": {**UNGROUPED_HEAD_SETTINGS, "head_dim": 2 * SMALL_WINDOW}},
    {"given": {"rope_parameters": {"full_attention": DEFAULT_ROPE, "sliding_attention": DEFAULT_ROPE}}},
    {"given": UNGROUPED_HEAD_SETTINGS, "layers_per_kind": 2},
    {"given": UNGROUPED_HEAD_SETTINGS, "fill_none": True},
]
BEAM_SEARCH_KWARGS = {"num_beams": N_BEAMS, "num_return_sequences": N_BEAMS}
DRAFT_MODEL_KWARGS = {
    "num_assistant_tokens": 4,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0,
}
WAY_KWARGS: dict[str, dict[str, Any]] = {
    "uncached": {"use_cache": False},
    "beams": BEAM_SEARCH_KWARGS,
    "uncached beams": {**BEAM_SEARCH_KWARGS, "use_cache": False},
    "lookup": {"prompt_lookup_num_tokens": 4},
}
MAX_SETTING_DROPS = 4  # how often settings that an error names are then left at their defaults
MAX_PARAMETERS = 10_000_000


@dataclass
class DecodingState:
    """What is carried from step to step."""

    cache: Any  # the library's
    memory: Any = None  # the encoder's output, and the ids and the mask of the source; None for a decoder-only model
    mask: Tensor | None = None  # bool (B, T), which of the tokens so far are real; None: all
    n_fed: int = 0  # the number of tokens so far


class HFModel(CachedModel[DecodingState]):
    """What both kinds share; `auto_class` makes or loads such a model, `variant_names` name what is in `variants`."""

    auto_class: Any
    variant_names: tuple[str, ...] = ("weights", "static", "rollback")
    refusal = Exception  # the library's caches refuse in different ways

    def __init__(self, model: Any, way: str = "") -> None:
        """Take a model, run in a way that is one of `variant_names`; "mask alone" has it find positions by itself."""
        if way == "weights":  # a copy with plain attention, which alone returns its weights
            model = copy.deepcopy(model)
            model.set_attn_implementation("eager")
        self.model, self._way = model.eval(), way
        self._flags = {"output_attentions": True} if way == "weights" else {}
        config = model.config.get_text_config(decoder=True)
        settings = [item for each in (model.config, config) for item in vars(each).items()]
        special = [ids for name, ids in settings if name.endswith(SPECIAL_ID_SUFFIXES)]
        flat = {i for ids in special for i in (ids if isinstance(ids, list) else [ids])}
        self._config, self.dtype = config, next(model.parameters()).dtype
        self.name = f"{type(model).__name__} of transformers {transformers.__version__}"
        n_ids = config.vocab_size  # of the target
        if self.has_source:
            n_ids = min(n_ids, _token_embedding(model.get_encoder()).num_embeddings)
            starts = (id_ for each in (model.generation_config, model.config) for id_ in _integers(each, START_KEYS, 0))
            self.first = next(starts, 0)
        self.ordinary = [i for i in range(n_ids) if i not in flat]
        self.max_len = next(_integers(config, MAX_LEN_KEYS, 1), None)
        self.window_sizes = sorted({*_integers(config, WINDOW_KEYS, 1)})
        # Of a compiled model, and of one with PEFT's adapters, the inner one names what it takes.
        inner = model.get_base_model() if hasattr(model, "get_base_model") else getattr(model, "_orig_mod", model)
        self._takes = set(inspect.signature(inner.forward).parameters)
        names = "past_key_values", "cache_params", "state"
        self.cache_name = next((name for name in names if name in self._takes), "")

    @property  # because a model that keeps functions of itself is freed late
    def variants(self) -> dict[str, Callable[[], "HFModel"]]:  # type: ignore[override]
        """The same model, run in each of the ways that `variant_names` names."""
        return {each: partial(self._same_around, self.model, each) for each in self.variant_names}

    def to(self, dtype: torch.dtype) -> "HFModel":
        """The same around a copy in another dtype."""
        return self._same_around(copy.deepcopy(self.model).to(dtype))

    def _same_around(self, model: Any, way: str = "") -> "HFModel":
        same = type(self)(model, way)
        for name in {"ordinary", "first", "max_len", "window_sizes", "refusal", "takes_mask"} & vars(self).keys():
            setattr(same, name, getattr(self, name))  # perhaps set by the user
        return same

    def generate(self, memory: Any, prompts: Tensor, n: int, way: str, mask: Tensor | None = None) -> Tensor:
        """By the library's `generate`, without the model's own settings for it."""
        special = sorted({*range(self._config.vocab_size)}.difference(self.ordinary))
        real = torch.ones_like(prompts) if mask is None else mask.long()
        inputs: dict[str, Any] = {"inputs": prompts, "attention_mask": real}
        if memory is not None:
            inputs = {"inputs": memory[1], "attention_mask": memory[2], "decoder_input_ids": prompts}
        if "draft" in way:
            inputs["assistant_model"] = draft = self._noisy_draft_model if way == "draft" else copy.copy(self.model)
            draft.generation_config = transformers.GenerationConfig(**DRAFT_MODEL_KWARGS)
        given = {"max_new_tokens": n, "suppress_tokens": special or None, "decoder_start_token_id": self.first}
        before = self.model.generation_config
        self.model.generation_config = transformers.GenerationConfig(**given, pad_token_id=0, **WAY_KWARGS.get(way, {}))
        try:
            return self.model.generate(**inputs)
        finally:
            self.model.generation_config = before

    @cached_property
    def _noisy_draft_model(self) -> Any:
        """A copy with slightly different parameters, so that some of its drafts are right."""
        draft = copy.deepcopy(self.model)
        for parameter in draft.parameters():
            parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
        return draft

    def make_cache(self, capacity: int) -> Any:
        """An empty cache of the library, for as many tokens as `capacity`; override it for a class of your own."""
        cache = transformers.DynamicCache(config=self._config)
        if self._way == "rollback":
            cache.activate_past_recording()
        return cache

    def _new_cache_of_way(self, capacity: int) -> Any:
        """The cache from `make_cache`; or, to run it "static", the library's cache of a fixed size."""
        if self._way == "static":
            return transformers.StaticCache(config=self._config, max_cache_len=capacity)
        return self.make_cache(capacity)

    def _logits_and_weights(self, output: Any, n_fed: int) -> list[Tensor]:
        """Logits; and weights, if they are wanted, with a column for each of the tokens so far.

        A sliding cache keeps only the last keys: the others get weight 0.
        """
        numbers = [output.logits]
        if self._flags:
            own = getattr(output, "decoder_attentions", None) or getattr(output, "attentions", None) or ()
            numbers += [F.pad(w, (max(0, n_fed - w.size(-1)), 0)) for w in own if w is not None]
            numbers += [w for w in getattr(output, "cross_attentions", None) or () if w is not None]
        return numbers

    def select_rows(self, cache: DecodingState, rows: Tensor) -> DecodingState:
        """By `reorder_cache`, as beam search does."""
        if isinstance(cache.cache, list):
            cache.cache = [x[rows] for x in cache.cache]
        else:
            cache.cache.reorder_cache(rows)
        mask = cache.mask if cache.mask is None else cache.mask[rows]
        return DecodingState(cache.cache, _select_memory(cache.memory, rows), mask, cache.n_fed)

    def drop_last(self, cache: DecodingState, n: int) -> DecodingState:
        """By `crop`, if the cache says that it can be cropped: a recurrent state cannot."""
        if not getattr(cache.cache, "is_croppable", False):
            raise NotOfferedError("its cache says that it cannot be cropped")
        cache.cache.crop(-n)
        mask = cache.mask if cache.mask is None else cache.mask[:, :-n]
        return DecodingState(cache.cache, cache.memory, mask, cache.n_fed - n)


class EncoderDecoder(HFModel):
    """A sequence-to-sequence model."""

    has_source = True
    auto_class = AutoModelForSeq2SeqLM

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The encoder's output, the ids, and the mask."""
        mask = src_mask.long()
        return self.model.get_encoder()(input_ids=src_ids, attention_mask=mask, return_dict=True), src_ids, mask

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Without a cache; with the source's ids, as in training: without them some models make no causal mask."""
        return self._logits_and_weights(self._run(memory, tokens, input_ids=memory[1], use_cache=False), tokens.size(1))

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> DecodingState:
        """Two of the library's caches, for the target and the source."""
        cross = transformers.DynamicCache(config=self._config)
        return DecodingState(transformers.EncoderDecoderCache(self._new_cache_of_way(capacity), cross), memory)

    def feed(self, tokens: Tensor, cache: DecodingState, mask: Tensor | None = None) -> list[Tensor]:
        """With the cache."""
        cache.n_fed += tokens.size(1)
        output = self._run(cache.memory, tokens, past_key_values=cache.cache, use_cache=True)
        return self._logits_and_weights(output, cache.n_fed)

    def _run(self, memory: Any, tokens: Tensor, **how: Any) -> Any:
        encoded, _, src_mask = memory
        return self.model(
            encoder_outputs=copy.copy(encoded), attention_mask=src_mask, decoder_input_ids=tokens, **self._flags, **how
        )

    def embedding(self) -> nn.Module:
        """The decoder's token embedding."""
        return _token_embedding(self.model.get_decoder())


class DecoderOnly(HFModel):
    """A causal language model."""

    takes_mask = True
    auto_class = AutoModelForCausalLM
    variant_names = (*HFModel.variant_names, "mask alone")

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Without a cache."""
        output = self.model(tokens, use_cache=False, **self._mask_kwargs(mask, tokens), **self._flags)
        return self._logits_and_weights(output, tokens.size(1))

    def new_cache(self, memory: Any, n_rows: int, capacity: int) -> DecodingState:
        """One of the library's; None for a `state`, which the model then makes and returns."""
        if not self.cache_name:
            raise NotOfferedError("it takes no cache")
        if self.cache_name == "state":
            if self._way == "static":
                raise NotOfferedError("its state is of a fixed size")
            return DecodingState(None)
        return DecodingState(self._new_cache_of_way(capacity))

    def feed(self, tokens: Tensor, cache: DecodingState, mask: Tensor | None = None) -> list[Tensor]:
        """With the cache."""
        cache.n_fed += tokens.size(1)
        if mask is not None:
            cache.mask = mask if cache.mask is None else torch.cat([cache.mask, mask], 1)
        name, first = self.cache_name, cache.n_fed == tokens.size(1)
        # models with cache_params take a mask of the tokens that are fed, and none for single tokens
        prompt = mask if tokens.size(1) > 1 else None
        padding = self._mask_kwargs(cache.mask if name == "past_key_values" else prompt, tokens)
        options: dict[str, Any] = {**padding, **self._flags, "use_cache": True}
        try:
            output = self.model(tokens, **{name: cache.cache}, **options)
        except (AttributeError, TypeError, ValueError):
            if not first or self._way == "static" or type(self).make_cache is not HFModel.make_cache:
                raise
            output, cache.cache = self.model(tokens, **options), None  # it may make a cache of its own class
        if cache.cache is None or name == "state":
            cache.cache = output[name]
        return self._logits_and_weights(output, cache.n_fed)

    def _mask_kwargs(self, mask: Tensor | None, tokens: Tensor) -> dict[str, Tensor]:
        """The arguments that say which of all tokens so far are real."""
        if mask is None:
            return {}
        if "attention_mask" not in self._takes:
            raise NotOfferedError("it takes no attention_mask")
        arguments = {"attention_mask": mask.long()}
        if self._way != "mask alone" and "position_ids" in self._takes:
            arguments["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.size(1) :]
        return arguments

    def embedding(self) -> nn.Module:
        """The token embedding."""
        return self.model.get_input_embeddings()


def _token_embedding(part: Any) -> Any:
    """The token embedding of an encoder or a decoder."""
    return part.embed_tokens if hasattr(part, "embed_tokens") else part.get_input_embeddings()


def _integers(config: Any, names: Sequence[str], least: int) -> Iterator[int]:
    """The settings of these names that are whole numbers of at least `least`."""
    values = (getattr(config, name, None) for name in names)
    return (value for value in values if isinstance(value, int) and value >= least)


def _select_memory(memory: Any, rows: Tensor) -> Any:
    if memory is None:
        return None
    encoded, *source = memory
    chosen = copy.copy(encoded)
    for name, value in encoded.items():
        if isinstance(value, Tensor):
            chosen[name] = value[rows]
    return chosen, *(x[rows] for x in source)


def adapter_by_name() -> dict[str, tuple[str, type[HFModel]]]:
    """Name and kind of each architecture, by its name and by its class's; if both kinds exist, an encoder-decoder."""
    kinds: list[tuple[dict[str, str], type[HFModel]]] = [
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, DecoderOnly),
        (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, EncoderDecoder),
    ]
    return {key: (name, kind) for names, kind in kinds for name, class_ in names.items() for key in (name, class_)}


def small_model(architecture: str, **settings: object) -> HFModel:
    """A small model of an architecture, in which every parameter is random, norms and biases too.

    Args:
        architecture: Its name or its class's, such as "marian", "MarianMTModel" or "gpt2".
        settings: Settings of its own, in place of those of SIZE_CAPS, FIXED_SETTINGS and ARCHITECTURE_SETTINGS.

    Raises:
        LoadError: It cannot be made small.
    """
    try:
        return call_model(_build_with_fallbacks, architecture, settings)  # a configuration may refuse in any way
    except NotOfferedError as error:
        raise LoadError(f"no small {architecture} can be made; give a folder with a model: {error}") from error


def _build_with_fallbacks(architecture: str, settings: dict[str, object]) -> HFModel:
    name, kind = adapter_by_name()[architecture]
    config_class, own = transformers.CONFIG_MAPPING[name], {**ARCHITECTURE_SETTINGS.get(name, {}), **settings}
    first: Exception | None = None
    dropping = [(attempt, MAX_SETTING_DROPS) for attempt in (SETTING_ATTEMPTS[0], SETTING_ATTEMPTS[-1])]
    for attempt, n_dropped in [*((attempt, 0) for attempt in SETTING_ATTEMPTS), *dropping]:
        tried = {**_small_settings(config_class, **attempt), **own}
        for _ in range(n_dropped + 1):
            try:
                return _model_from_settings(name, kind, tried)
            except Exception as error:
                first = first or error
                tried = _drop_settings(tried, set(re.findall(r"\w+", str(error))) - settings.keys())
    assert first
    raise first


def _model_from_settings(name: str, kind: type[HFModel], settings: dict[str, object]) -> HFModel:
    config = transformers.CONFIG_MAPPING[name](**settings)
    for setting in ("is_decoder", "causal"):
        if kind is DecoderOnly and hasattr(config, setting):
            setattr(config, setting, True)  # BERT, XLM and their like have a causal mask only then
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind.auto_class.from_config(config).parameters())
    if size > MAX_PARAMETERS:
        raise NotOfferedError(f"even when it is small it has {size:,} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = kind.auto_class.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    adapter = (kind if config.is_encoder_decoder else DecoderOnly)(model)
    adapter.auto_class = kind.auto_class
    random_case(adapter)  # which makes a full pass
    return adapter


def _drop_settings(settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The settings, nested ones too, without those of these names."""
    return {
        name: _drop_settings(value, names - {"model_type"}) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name not in names or isinstance(value, dict)
    }


def _small_settings(
    config_class: Any, given: dict[str, object] | None = None, *, fill_none: bool = False, layers_per_kind: int = 1
) -> dict[str, Any]:
    """Settings of a small model, and of the configurations inside it.

    Those `given` take precedence over SIZE_CAPS and FIXED_SETTINGS; `fill_none` sets numbers that are None too, and
    `layers_per_kind` is how many layers of each kind there are.
    """
    default, aliases, given = config_class(), config_class.attribute_map, {**FIXED_SETTINGS, **(given or {})}
    fields = {field.name: field.default for field in dataclasses.fields(config_class)}
    fields = {name: value for name, value in fields.items() if aliases.get(name) not in fields}
    values = {name: vars(default).get(aliases.get(name, name)) for name in fields}
    settings: dict[str, Any] = {}
    for name, value in fields.items():
        if name in given:
            settings[name] = given[name]
        elif name.endswith(SPECIAL_ID_SUFFIXES):
            if isinstance(value, int) and value >= SMALL_VOCAB_SIZE:
                settings[name] = SMALL_VOCAB_SIZE - 1 - len(settings) % 16
        elif isinstance(value, int) and not isinstance(value, bool):
            settings[name] = _cap_size(name, value)
        elif fill_none and value is None and values[name] is None and _cap_size(name, sys.maxsize) < sys.maxsize:
            settings[name] = _cap_size(name, sys.maxsize)
    for name, part in config_class.sub_configs_defaults.items():
        if (inside := values[name]) is not None:
            more = _small_settings(type(inside), given, fill_none=fill_none, layers_per_kind=layers_per_kind)
            settings[name] = {"model_type": inside.model_type, **(part.init_kwargs or {}), **more}
    lists = {name: list(value) for name, value in values.items() if isinstance(value, (list, tuple)) and value}
    kinds = {name: value for name, value in lists.items() if isinstance(value[0], str)}
    count = aliases.get("num_hidden_layers", "num_hidden_layers")
    n_layers = getattr(default, count, None)
    of_layers = [value for value in kinds.values() if len(value) == n_layers]
    if of_layers:
        rows = list(zip(*of_layers, strict=True))
        chosen = [i for i, row in enumerate(rows) if rows[:i].count(row) < layers_per_kind]
        chosen = [0, 1] if len(chosen) < 2 else chosen
        settings[count] = len(chosen)
        for name, value in lists.items():
            if len(value) == n_layers and (name in kinds or isinstance(fields[name], (list, tuple))):
                settings[name] = [_cap_size(name, value[i]) if isinstance(value[i], int) else value[i] for i in chosen]
        for key, own in (default.to_dict().get("per_layer_config") or {}).items():
            if (layer := int(key)) in chosen:
                layers = settings.setdefault("per_layer_config", {})
                layers[chosen.index(layer)] = {k: given.get(k, _cap_size(k, v)) for k, v in own.items()}
    elif count in fields:  # layers of alternating kinds
        settings[count] = max([2, *(len(value) for name, value in kinds.items() if name.endswith("_types"))])
    return settings


def _cap_size(name: str, value: int) -> int:
    """A setting's value, capped by the first of SIZE_CAPS that matches its name."""
    return next((min(value, small) for like, small in SIZE_CAPS.items() if re.fullmatch(like, name)), value)


def is_architecture(name: str) -> bool:
    """Whether a small random model of this name is built, rather than one loaded from a folder or the hub."""
    return name in adapter_by_name() and not os.path.isdir(name)


def load_or_build(name: str) -> HFModel:
    """Load a model, or build a small one, in float32.

    Args:
        name: A folder with a config and weights; or an architecture, such as "marian" or "MarianMTModel", for a small
            random model of it; or a name on the hub.

    Raises:
        LoadError: There is no such model, or it does not decode.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if is_architecture(name):
        return small_model(name)
    if not os.path.isdir(name):  # unlike Path.is_dir, false for a name that is too long
        if name.startswith(("/", ".")) or os.path.exists(name):
            raise LoadError(
                f"--model {name} is not a folder with a model; give such a folder, an architecture or a name on the hub"
            )
        if os.isatty(2):
            print(f"minitrans: loading {name} from the Hugging Face hub ...", file=sys.stderr)
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)  # nor does it ask
        kind: type[HFModel] = EncoderDecoder if config.is_encoder_decoder else DecoderOnly
        is_causal = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # unlike a decoder for audio
        auto = kind.auto_class if is_causal else EncoderDecoder.auto_class
        adapter = kind(auto.from_pretrained(name, dtype=torch.float32, trust_remote_code=False))
        adapter.auto_class = auto
        return adapter
    except Exception as error:
        words = one_line_message(error).split(". ")[0]
        raise LoadError(f"--model {name} cannot be loaded, from a folder or the hub: {words}") from error
