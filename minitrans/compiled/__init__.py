"""The model compiled for this processor: a guest. Without this folder everything works, more slowly."""
