"""What a user of transformers calls: `generate`, its arguments, criteria and processors."""
