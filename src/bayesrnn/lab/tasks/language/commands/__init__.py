"""Commands for language models: options, then one call."""
