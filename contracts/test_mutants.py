"""Every seeded fault is caught: `pytest contracts --mutants`. A survivor is a hole in a contract."""

import pytest

from ft.contracts.mutants import EVERY_MUTANT
from ft.contracts.mutate import Mutant, applied

NOT_A_FAULT = (NameError, AttributeError, TypeError, ImportError)
"""What a mutant that is no sound program raises; it proves nothing."""


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", EVERY_MUTANT, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_mutant_is_killed(mutant: Mutant) -> None:
    with applied(mutant):
        try:
            mutant.check()
        except NOT_A_FAULT:
            raise
        except Exception:  # noqa: BLE001 - a crash of the product is a kill too
            return
    pytest.fail(f"survived: {mutant.name}")


@pytest.mark.mutant
def test_the_contracts_of_the_mutants_hold_without_them() -> None:
    """A check that fails anyway would kill everything."""
    for check in {id(mutant.check): mutant.check for mutant in EVERY_MUTANT}.values():
        check()
