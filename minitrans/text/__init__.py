"""Lines of text, read exactly; files, written whole or not at all; the tokenizer that makes piece ids of lines."""
