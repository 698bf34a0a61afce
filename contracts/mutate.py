"""Seeded faults: a mutant is one replaced piece of source in one module of the product.

The mutated module is compiled aside, and the code of each function that differs is put into the living function,
so that every reference to it, imported by name or held by a class, runs the fault; afterwards it is taken out.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType, ModuleType


@dataclass(frozen=True)
class Mutant:
    """name says the fault; `old`, which stands exactly once in the module's source, becomes `new`.

    check: the contract that must fail under it.
    """

    name: str
    module: str
    old: str
    new: str
    check: Callable[[], None]


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run with the fault in place. ValueError when the piece of source is not there exactly once."""
    module = importlib.import_module(mutant.module)
    source = inspect.getsource(module)
    if source.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.old!r} stands {source.count(mutant.old)} times in {mutant.module}"
        )
    changed = _changed_code(module, source, source.replace(mutant.old, mutant.new))
    if not changed:
        raise ValueError(f"{mutant.name}: no function of {mutant.module} differs")
    before = [(function, function.__code__) for function, _ in changed]
    for function, code in changed:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _changed_code(module: ModuleType, source: str, mutated: str) -> list[tuple[FunctionType, CodeType]]:
    path = module.__file__ or module.__name__
    old_code = dict(_functions_of(compile(source, path, "exec")))
    new_code = dict(_functions_of(compile(mutated, path, "exec")))
    living = dict(_living_functions(module))
    return [
        (living[name], new_code[name])
        for name, code in old_code.items()
        if name in living and name in new_code and _differs(code, new_code[name])
    ]


def _functions_of(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from _functions_of(constant)


def _differs(old: CodeType, new: CodeType) -> bool:
    if old.co_code != new.co_code or old.co_names != new.co_names or old.co_varnames != new.co_varnames:
        return True
    pairs = zip(old.co_consts, new.co_consts, strict=False)
    return len(old.co_consts) != len(new.co_consts) or any(
        _differs(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a != b for a, b in pairs
    )


def _living_functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for item in vars(module).values():
        if isinstance(item, FunctionType) and item.__module__ == module.__name__:
            inner = inspect.unwrap(item)
            assert isinstance(inner, FunctionType)
            yield inner.__qualname__, inner
        elif isinstance(item, type) and item.__module__ == module.__name__:
            for member in vars(item).values():
                yield from _member_functions(member)


def _member_functions(member: object) -> Iterator[tuple[str, FunctionType]]:
    candidates: list[object] = [member]
    if isinstance(member, property):
        candidates = [member.fget]
    elif isinstance(member, cached_property):
        candidates = [member.func]
    elif isinstance(member, staticmethod | classmethod):
        candidates = [member.__func__]
    for candidate in candidates:
        if isinstance(candidate, FunctionType):
            inner = inspect.unwrap(candidate)
            assert isinstance(inner, FunctionType)
            yield inner.__qualname__, inner
