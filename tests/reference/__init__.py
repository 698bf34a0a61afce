"""The reference models: against transformers, against stored values, and against wrong twins of themselves."""
