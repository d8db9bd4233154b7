"""Parallel text: reading corpora, batching them by tokens, feeding the trainer."""
