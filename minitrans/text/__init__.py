"""Lines of text, read exactly, and the tokenizer that makes piece ids of them."""
