"""The proof: the reference and the engine held against each other; `pytest --pyargs ft.contracts` runs it."""
