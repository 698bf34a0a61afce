"""Text in and out: the tokenizer, the chat template, and text deltas from runs of tokens."""
