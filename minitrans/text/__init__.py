"""Lines of text, read exactly; how a source is read; words; the tokenizer that turns lines into piece ids."""
