"""Translators behind HTTP: LibreTranslate's API, a page to try the model, and what a machine's keeper watches."""
