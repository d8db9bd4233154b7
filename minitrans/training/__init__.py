"""Training with Lightning: settings, the module, callbacks, and the run from configuration to run folder."""
