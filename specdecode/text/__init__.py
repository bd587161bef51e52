"""The calls for users of transformers: `generate`, its arguments, criteria and processors."""
