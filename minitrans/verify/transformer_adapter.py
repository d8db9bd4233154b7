"""Our own model for the checks of anyone's model: it gives them every number that its decoder computes."""

from typing import Any

from torch import Tensor

from minitrans.cachecheck.protocol import CachedModel, ModelAndTokens
from minitrans.model.cache import DecoderCache
from minitrans.model.layers import LayerOutput
from minitrans.model.masks import padding_mask
from minitrans.model.transformer import Transformer


class TransformerAdapter(CachedModel[DecoderCache]):
    """A `Transformer`: logits, and each layer's output, self-attention and cross-attention weights."""

    has_source = True

    def __init__(self, model: Transformer) -> None:
        """Take a model in eval mode."""
        config = model.config
        special = {config.pad_id, config.bos_id, config.eos_id}
        self.model, self.first, self.max_len = model, config.bos_id, config.max_len
        self.dtype = model.output.weight.dtype
        self.ordinary = [i for i in range(config.vocab_size) if i not in special]

    def encode(self, src_ids: Tensor, src_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The memory, and the mask that the decoder needs with it."""
        return self.model.encode(src_ids.masked_fill(~src_mask, self.model.config.pad_id))  # how it recognises padding

    def full_pass(self, memory: tuple[Tensor, Tensor], tokens: Tensor, mask: Tensor | None = None) -> list[Any]:
        """All numbers of the full masked pass, and once more the logits, from `decode`."""
        numbers = self._logits_and_traces(*self.model.run_decoder(tokens, *memory, need_weights=True))
        return [*numbers, self.model.decode(tokens, *memory)]

    def new_cache(self, memory: tuple[Tensor, Tensor], n_rows: int, capacity: int) -> DecoderCache:
        """An empty cache."""
        return self.model.init_cache(*memory, capacity)

    def feed(self, tokens: Tensor, cache: DecoderCache, mask: Tensor | None = None) -> list[Any]:
        """All numbers of the next tokens, and once more the logits, from `step`; its cache is the one to go on with."""
        copy = self.copy_cache(cache)
        numbers = self._logits_and_traces(*self.model.run_decoder(tokens, None, copy.src_mask, copy, need_weights=True))
        return [*numbers, self.model.step(tokens, cache)]

    def select_rows(self, cache: DecoderCache, rows: Tensor) -> DecoderCache:
        """The same cache, changed in place."""
        cache.select_rows(rows)
        return cache

    def drop_last(self, cache: DecoderCache, n: int) -> DecoderCache:
        """The same cache, shortened: slots beyond its length count as empty."""
        cache.length -= n
        return cache

    def _logits_and_traces(self, hidden: Tensor, traces: list[LayerOutput]) -> list[Any]:
        """Logits (B, n, V), then (B, n, D), (B, H, n, Tk) and (B, H, n, S) for each layer."""
        return [self.model.logits(hidden), *(numbers for trace in traces for numbers in trace)]


def adapt_model_and_tokens(model: Transformer, src_ids: Tensor, tgt_in: Tensor) -> ModelAndTokens[DecoderCache]:
    """A model of ours, sources (B, S) padded on the right, and targets (B, T), which begin with BOS."""
    src_mask = padding_mask(src_ids, model.config.pad_id)[:, 0, 0]
    return ModelAndTokens(TransformerAdapter(model), tgt_in, src_ids, src_mask)
