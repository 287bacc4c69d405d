"""What a step was called with, as the digest by which a later attempt knows it again."""

from __future__ import annotations

from typing import Any

import pytest

from earnest.domain import canonical
from earnest.engine.attempts.remembering import digest_of


class Client:
    """No data; passed along."""


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, "a", None, True), {"k": 2}), (([1, {"b": 2}],), {"k": [1.5]})],
    ids=["nothing", "scalars", "more"],
)
def test_a_digest_is_that_of_the_arguments_as_canonical_json(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """The same by whichever way it is reached: what older attempts stored is found again."""
    assert digest_of(args, kwargs) == canonical.digest(canonical.encode([list(args), kwargs]))


@pytest.mark.parametrize("other", [(1, "b"), (2, "a"), (1,), (True, "a"), ("1", "a")], ids=repr)
def test_other_arguments_have_another_digest(other: tuple[Any, ...]) -> None:
    assert digest_of(other, {}) != digest_of((1, "a"), {})


def test_a_set_has_one_digest_whatever_its_order() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other), "equal, and shown in another order"
    assert digest_of((one,), {}) == digest_of((other,), {})


def test_what_is_no_data_counts_as_its_type() -> None:
    assert digest_of((Client(), 1), {}) == digest_of((Client(), 1), {})
    assert digest_of((Client(), 1), {}) != digest_of((Client(), 2), {})
