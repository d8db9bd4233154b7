"""Hugging Face's models as the checks see them: any encoder-decoder, and any decoder alone.

The only file here that needs `transformers`. Nothing is loaded from the network but what is named as on the hub.
"""

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from minitrans.cachecheck.check import NotOfferedError
from minitrans.cachecheck.protocol import CachedModel, LoadError, ask, in_a_line

try:
    import transformers
    from transformers.models.auto import modeling_auto
except ImportError as error:
    if error.name == "transformers":
        raise LoadError("transformers is not installed; pip install 'minitrans[hf]'") from error
    raise LoadError(f"transformers cannot be imported: {in_a_line(error)}") from error

VOCABULARY = 53  # pieces of a small model
LENGTH = 96  # its positions
SPAN = 8  # its windows and blocks
WINDOWS = "sliding_window", "window_size", "local_window_size", "attention_chunk_size"

# What small models are made of: every setting of an architecture that goes by one of these names. Windows and blocks
# are short, so that sentences cross them.
SMALL: dict[str, object] = {
    **dict.fromkeys(["vocab_size", "src_vocab_size", "tgt_vocab_size", "t2u_vocab_size"], VOCABULARY),
    **dict.fromkeys(["d_model", "hidden_size", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"], 32),
    **dict.fromkeys(["encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "intermediate_size", "ffn_dim", "n_inner"], 48),
    **dict.fromkeys(["encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers", "num_hidden_layers"], 2),
    **dict.fromkeys(["num_encoder_layers", "n_layer", "n_layers"], 2),
    **dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads", "num_heads", "num_attention_heads"], 4),
    **dict.fromkeys(["num_encoder_attention_heads", "num_decoder_attention_heads", "n_head", "n_heads"], 4),
    **dict.fromkeys(["num_key_value_heads"], 2),
    **dict.fromkeys(["d_kv", "head_dim", "rotary_dim"], 8),
    **dict.fromkeys(["max_position_embeddings", "max_encoder_position_embeddings", "n_positions", "n_ctx"], LENGTH),
    **dict.fromkeys(["max_decoder_position_embeddings", "max_seq_len", "seq_length"], LENGTH),
    **dict.fromkeys(["sliding_window", "attention_window", "window_size"], SPAN),
    **dict.fromkeys(["local_radius", "global_block_size", "block_size"], 4),
    **dict.fromkeys(["num_experts", "num_local_experts"], 4),
    **dict.fromkeys(["expert_capacity"], 1000),
    "num_random_blocks": 1,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "ngram": 2,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "initializer_range": 0.1,
}

# What else small models of some architectures need: settings that have to agree, and that go by other names.
OWN: dict[str, dict[str, object]] = {
    "falcon_mamba": {"state_size": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba": {"state_size": 4},
    "mamba2": {"num_heads": 8, "n_groups": 2, "state_size": 4, "chunk_size": SPAN},  # hidden_size * expand = heads * 8
    "prophetnet": {"pad_token_id": 0, "bos_token_id": 1},  # its steps take no other padding
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": SPAN},  # the third attends
}


@dataclass
class State:
    """What goes from step to step.

    Attributes:
        cache: Theirs.
        memory: What the encoder gave, and the ids and the mask of the source; None for a decoder alone.
        mask: bool (B, T), which of the tokens so far are real; None: all.
        fed: How many tokens those are.
    """

    cache: Any
    memory: Any = None
    mask: Tensor | None = None
    fed: int = 0


class HuggingFace(CachedModel[State]):
    """What both kinds share; `auto` is what makes or loads a model of the kind."""

    auto: Any

    def __init__(self, model: Any, *, weights: bool = False, static: bool = False, rollback: bool = False) -> None:
        """Take a model; it may give attention weights, and have static caches, or such as can be rolled back."""
        if weights:  # a copy that computes attention in the open
            model = copy.deepcopy(model)
            model.set_attn_implementation("eager")
        self.model, self._static, self._rollback = model.eval(), static, rollback
        self._flags = {"output_attentions": True} if weights else {}
        config = model.config.get_text_config(decoder=True)
        special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start", "unk")}
        flat = {i for ids in special for i in (ids if isinstance(ids, list) else [ids])}
        self._config, self.dtype = config, next(model.parameters()).dtype
        self.name = f"{type(model).__name__} of transformers {transformers.__version__}"
        self.ordinary = [i for i in range(config.vocab_size) if i not in flat]
        self.first = _first_token(model) if self.has_source else None
        self.max_len = _first(config, "max_position_embeddings", "n_positions", "max_decoder_position_embeddings")
        spans = (getattr(config, name, None) for name in WINDOWS)
        self.spans = sorted({size for size in spans if isinstance(size, int) and size > 0})
        self.variants = {
            "weights": lambda: type(self)(self.model, weights=True),
            "static": lambda: type(self)(self.model, static=True),
            "rollback": lambda: type(self)(self.model, rollback=True),
        }

    def to(self, dtype: torch.dtype) -> "HuggingFace":
        """The same around a copy in another dtype."""
        return type(self)(copy.deepcopy(self.model).to(dtype))

    def _new(self, capacity: int) -> Any:
        """An empty cache of theirs, as it is wanted."""
        cache = self._plain(capacity)
        if self._rollback:
            cache.activate_past_recording()
        return cache

    def _plain(self, capacity: int) -> Any:
        """An empty cache of theirs."""
        if self._static:
            return transformers.StaticCache(config=self._config, max_cache_len=capacity)
        return transformers.DynamicCache(config=self._config)

    def _numbers(self, output: Any, fed: int) -> list[Tensor]:
        """Logits; and weights, if they are wanted, with a column for each of the tokens so far.

        A cache that slides keeps the last keys alone: the others have no weight.
        """
        found = [output.logits]
        if self._flags:
            own = getattr(output, "decoder_attentions", None) or getattr(output, "attentions", None) or ()
            found += [F.pad(w, (max(0, fed - w.size(-1)), 0)) for w in own if w is not None]
            found += [w for w in getattr(output, "cross_attentions", None) or () if w is not None]
            if len(found) == 1:
                raise NotOfferedError("it returns no attention weights")
        return found

    def select_rows(self, cache: State, rows: Tensor) -> State:
        """By `reorder_cache`, as beam search does."""
        if isinstance(cache.cache, list):
            cache.cache = [x[rows] for x in cache.cache]
        else:
            cache.cache.reorder_cache(rows)
        mask = cache.mask if cache.mask is None else cache.mask[rows]
        return State(cache.cache, _rows_of(cache.memory, rows), mask, cache.fed)

    def drop_last(self, cache: State, n: int) -> State:
        """By `crop`, if the cache says that it can be cropped: a recurrent state cannot."""
        if not cache.cache.is_croppable:
            raise NotOfferedError("its cache says that it cannot be cropped")
        cache.cache.crop(-n)
        mask = cache.mask if cache.mask is None else cache.mask[:, :-n]
        return State(cache.cache, cache.memory, mask, cache.fed - n)

    def shift_positions(self, cache: State, by: int) -> None:
        """Have the cache say that it holds more tokens than it does."""
        theirs = getattr(cache.cache, "self_attention_cache", cache.cache)
        length = type(theirs).get_seq_length
        length(theirs)  # raises where there are no positions to count
        if "get_seq_length" not in vars(theirs):
            theirs.get_seq_length = lambda *a, **k: n + by if (n := length(theirs, *a, **k)) else 0


class EncoderDecoder(HuggingFace):
    """A model for sequences to sequences."""

    has_source = True
    auto = transformers.AutoModelForSeq2SeqLM

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Any, Tensor, Tensor]:
        """What the encoder gives, the ids, and the mask."""
        mask = src_mask.long()
        return self.model.get_encoder()(input_ids=src_ids, attention_mask=mask, return_dict=True), src_ids, mask

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Without a cache; with the source's ids, as in training: without them some make no causal mask."""
        return self._numbers(self._run(memory, tokens, input_ids=memory[1], use_cache=False), tokens.size(1))

    def new_cache(self, memory: Any, rows: int, capacity: int) -> State:
        """Two caches of theirs, for the target and the source."""
        cross = transformers.DynamicCache(config=self._config)
        return State(transformers.EncoderDecoderCache(self._new(capacity), cross), memory)

    def feed(self, tokens: Tensor, cache: State, mask: Tensor | None = None) -> list[Tensor]:
        """With the cache."""
        cache.fed += tokens.size(1)
        return self._numbers(self._run(cache.memory, tokens, past_key_values=cache.cache, use_cache=True), cache.fed)

    def _run(self, memory: Any, tokens: Tensor, **how: Any) -> Any:
        encoded, _, src_mask = memory
        return self.model(
            encoder_outputs=copy.copy(encoded),
            attention_mask=src_mask,
            decoder_input_ids=tokens,
            **self._flags,
            **how,
        )

    def embedding(self) -> nn.Module:
        """The decoder's."""
        decoder = self.model.get_decoder()
        return decoder.embed_tokens if hasattr(decoder, "embed_tokens") else decoder.get_input_embeddings()


class DecoderOnly(HuggingFace):
    """A causal language model."""

    takes_mask = True
    auto = transformers.AutoModelForCausalLM

    def __init__(self, model: Any, *, mask_alone: bool = False, **how: bool) -> None:
        """Take the model; `mask_alone` has it find positions in the mask by itself."""
        super().__init__(model, **how)
        self._mask_alone = mask_alone
        self._takes = set(inspect.signature(model.forward).parameters)
        names = "past_key_values", "cache_params", "state"
        self._cache_name = next((name for name in names if name in self._takes), names[0])
        self.variants = {**self.variants, "mask alone": lambda: type(self)(self.model, mask_alone=True)}

    def full_pass(self, memory: Any, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Without a cache."""
        output = self.model(tokens, use_cache=False, **self._padding(mask, tokens), **self._flags)
        return self._numbers(output, tokens.size(1))

    def new_cache(self, memory: Any, rows: int, capacity: int) -> State:
        """One of theirs; a `state` is None, and is given back."""
        if self._cache_name == "state":
            if self._static:
                raise NotOfferedError("its state is of a fixed size")
            return State(None)
        return State(self._new(capacity))

    def feed(self, tokens: Tensor, cache: State, mask: Tensor | None = None) -> list[Tensor]:
        """With the cache."""
        cache.fed += tokens.size(1)
        if mask is not None:
            cache.mask = mask if cache.mask is None else torch.cat([cache.mask, mask], 1)
        name = self._cache_name
        # those with cache_params want a mask of the tokens that are fed, and none when they generate
        prompt = mask if tokens.size(1) > 1 else None
        how = self._padding(cache.mask if name == "past_key_values" else prompt, tokens)
        output = self.model(tokens, **{name: cache.cache}, use_cache=True, **how, **self._flags)
        if name == "state":
            cache.cache = output.state
        return self._numbers(output, cache.fed)

    def _padding(self, mask: Tensor | None, tokens: Tensor) -> dict[str, Tensor]:
        """The arguments that say what is real, of all tokens so far."""
        if mask is None:
            return {}
        if "attention_mask" not in self._takes:
            raise NotOfferedError("it takes no attention_mask")
        found = {"attention_mask": mask.long()}
        if not self._mask_alone and "position_ids" in self._takes:
            found["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)[:, -tokens.size(1) :]
        return found

    def embedding(self) -> nn.Module:
        """The only one."""
        return self.model.get_input_embeddings()


def _first(config: Any, *names: str) -> int | None:
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def _first_token(model: Any) -> int:
    """What its decoder begins with."""
    for source in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            if isinstance(found := getattr(source, name, None), int):
                return found
    return 0


def _rows_of(memory: Any, rows: Tensor) -> Any:
    if memory is None:
        return None
    encoded, *source = memory
    chosen = copy.copy(encoded)
    for name, value in encoded.items():
        if isinstance(value, Tensor):
            chosen[name] = value[rows]
    return chosen, *(x[rows] for x in source)


def architectures() -> dict[str, tuple[str, type[HuggingFace]]]:
    """What stands for an architecture, its name or its class's: the name, and the kind; if both, an encoder-decoder."""
    kinds: list[tuple[dict[str, str], type[HuggingFace]]] = [
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, DecoderOnly),
        (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, EncoderDecoder),
    ]
    return {
        key: (name, kind) for names, kind in kinds for name, class_name in names.items() for key in (name, class_name)
    }


def small_model(architecture: str, seed: int = 0, **settings: object) -> HuggingFace:
    """A small model of an architecture, in which every parameter is random, norms and biases too.

    Args:
        architecture: Such as "marian", "MarianMTModel" or "gpt2".
        seed: Of the numbers.
        settings: Settings of its own, in place of those of SMALL and OWN.

    Raises:
        LoadError: There is no such architecture, or it cannot be made small.
    """
    if architecture not in architectures():
        raise LoadError(f"transformers {transformers.__version__} has no {architecture} that decodes")
    try:
        return ask(_random_model, architecture, seed, settings)  # a configuration may refuse in any way
    except NotOfferedError as error:
        raise LoadError(f"no small {architecture} can be made, give a folder with a model: {error}") from error


def _random_model(architecture: str, seed: int, settings: dict[str, object]) -> HuggingFace:
    architecture, kind = architectures()[architecture]
    config_class = transformers.CONFIG_MAPPING[architecture]
    config = config_class(**{**_small_settings(config_class), **OWN.get(architecture, {}), **settings})
    if kind is DecoderOnly and hasattr(config, "is_decoder"):
        config.is_decoder = True  # BERT and its like have a causal mask only then
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.auto.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return kind(model)


def _small_settings(config_class: Any) -> dict[str, object]:
    """What there is of SMALL in a configuration, and in the configurations inside it."""
    known = set(inspect.signature(config_class.__init__).parameters) | {*getattr(config_class, "attribute_map", {})}
    known |= set(getattr(config_class, "__annotations__", {}))
    found = {name: value for name, value in SMALL.items() if name in known}
    for name, part in getattr(config_class, "sub_configs_defaults", {}).items():
        model_type = getattr(part, "model_type", "")
        own_class = transformers.CONFIG_MAPPING[model_type] if hasattr(part, "init_kwargs") else part
        more = getattr(part, "init_kwargs", None) or {}
        found[name] = {"model_type": model_type, **_small_settings(own_class), **more}
    return found


def load(name: str) -> HuggingFace:
    """A model in float32.

    Args:
        name: A folder with a config and weights; or an architecture, such as "marian" or "MarianMTModel", for a small
            random model of it; or a name on the hub.

    Raises:
        LoadError: There is no such model, or it does not decode.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = Path(name)
    if not folder.is_dir():
        if name in architectures():
            return small_model(name)
        if folder.is_absolute() or name.startswith(".") or folder.exists():
            raise LoadError(
                f"--model {name} is not a folder with a model; give such a folder, an architecture or a name on the hub"
            )
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        kind: type[HuggingFace] = EncoderDecoder if config.is_encoder_decoder else DecoderOnly
        return kind(kind.auto.from_pretrained(name, dtype=torch.float32))
    except Exception as error:
        words = in_a_line(error).split(". ")[0]
        raise LoadError(f"--model {name} cannot be loaded, from a folder or the hub: {words}") from error
