"""One test for many values: quicker than a test for each, and all that fail are told together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def for_each(
    name: str, values: Collection[T], describe: Callable[[T], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with every value as the argument `name`; `describe` names those that fail."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(**fixtures: Any) -> None:
            assert values
            errors = []
            for value in values:
                try:
                    test(**fixtures, **{name: value})
                except Exception as error:
                    error.add_note(f"with {name} = {describe(value)}")
                    errors.append(error)
            if errors:
                raise ExceptionGroup(f"{len(errors)} of {len(values)} failed", errors[:20])

        # pytest reads the fixtures' names from the signature.
        signature = inspect.signature(test)
        others = [parameter for key, parameter in signature.parameters.items() if key != name]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
        )
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.__qualname__ = test.__qualname__
        marks = list(getattr(test, "pytestmark", []))
        if getattr(test, "is_hypothesis_test", False):
            marks.append(pytest.mark.hypothesis)
        run.pytestmark = marks  # type: ignore[attr-defined]
        return run

    return decorate
