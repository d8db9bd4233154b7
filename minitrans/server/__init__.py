"""Translators behind HTTP: LibreTranslate's API, a page to try the models, and metrics for whoever runs the server."""
