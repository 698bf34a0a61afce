"""Model families, one folder each, named by model_type and found by walking this package."""
