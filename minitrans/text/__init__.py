"""Lines of text, read exactly; how a source is read; words; the tokenizer that makes piece ids of lines."""
