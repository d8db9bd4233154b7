"""A run as a translator: its files, lines in and lines out, scores, when it is unsure, and who computes."""
