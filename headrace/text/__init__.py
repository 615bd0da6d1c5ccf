"""Text: tokenizers, templates, incremental detokenising."""
