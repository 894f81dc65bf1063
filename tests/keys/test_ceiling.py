"""Restores with another max parallelism than the stored one: which stored key groups each range
needs.
"""

from __future__ import annotations

from itertools import product

import pytest

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import (
    MAX_PARALLELISM,
    Ceiling,
    KeyGroupAssignment,
    KeyGroupRange,
    ceiling_of,
    key_group_of_hash,
)

SMALL = [(stored, k) for stored in range(1, 13) for k in range(2, 7)]


def ranges(count: int) -> list[KeyGroupRange]:
    """Return all ranges of this many key groups."""
    return [KeyGroupRange(a, b) for a in range(count) for b in range(a, count)]


def test_a_new_group_is_inside_one_stored_group() -> None:
    """Exhaustive over the remainders of a hash for all moduli."""
    for stored, k in SMALL:
        for mixed in range(2 * k * stored):
            assert mixed % (k * stored) % stored == mixed % stored


@pytest.mark.parametrize("key_hash", [0, 1, -1, 7, 2**31 - 1, -(2**31), 123_456_789])
def test_the_key_group_formula_implies_it(key_hash: int) -> None:
    for stored, k in product((1, 3, 128, 1000), (2, 3, 32)):
        raised = key_group_of_hash(key_hash, stored * k)
        assert raised % stored == key_group_of_hash(key_hash, stored)


def test_raised_ranges_read_exactly_the_stored_groups_they_need() -> None:
    for stored, k in SMALL:
        ceiling = ceiling_of(stored, stored * k)
        assert ceiling == Ceiling(stored, stored * k)
        assert ceiling.is_raised
        for own in ranges(stored * k):
            check(ceiling.stored_groups(own), {group % stored for group in own})


def test_lowered_ranges_read_exactly_the_stored_groups_they_need() -> None:
    for wanted, k in SMALL:
        ceiling = ceiling_of(wanted * k, wanted)
        assert ceiling is not None
        assert not ceiling.is_raised
        for own in ranges(wanted):
            needed = {group for group in range(wanted * k) if group % wanted in own}
            check(ceiling.stored_groups(own), needed)


def check(found: tuple[KeyGroupRange, ...], needed: set[int]) -> None:
    """Assert that the ranges cover exactly the needed groups, ascending, in as few ranges as
    possible.
    """
    covered = [group for one in found for group in one]
    assert covered == sorted(needed)
    runs = sum(group - 1 not in needed for group in needed)
    assert len(found) == runs


def test_lowered_subtasks_share_no_stored_group() -> None:
    for stored, k in SMALL:
        ceiling = ceiling_of(stored * k, stored)
        assert ceiling is not None
        for parallelism in range(1, stored + 1):
            assignment = KeyGroupAssignment(max_parallelism=stored, parallelism=parallelism)
            read = [g for own in assignment.ranges() for s in ceiling.stored_groups(own) for g in s]
            assert sorted(read) == list(range(stored * k))


def test_the_same_number_is_an_identity() -> None:
    assert ceiling_of(128, 128) is None


@pytest.mark.parametrize(("stored", "wanted"), [(128, 100), (128, 192), (7, 8), (6, 4)])
def test_neither_multiple_nor_divisor_names_rekey(stored: int, wanted: int) -> None:
    with pytest.raises(ParallelismError, match="statestore rekey") as caught:
        ceiling_of(stored, wanted)
    assert f"stored max parallelism {stored} cannot be read as {wanted} without" in str(
        caught.value
    )


@pytest.mark.parametrize("wanted", [0, -128, MAX_PARALLELISM * 2])
def test_out_of_bounds(wanted: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"not {wanted}"):
        ceiling_of(128, wanted)


@pytest.mark.parametrize("stored", [3, 7, 15, 128, 20_000, 32_749, MAX_PARALLELISM])
def test_proposed_numbers_are_valid(stored: int) -> None:
    wanted = next(number for number in range(2, stored) if number % stored and stored % number)
    with pytest.raises(ParallelismError) as caught:
        ceiling_of(stored, wanted)
    proposed = str(caught.value).partition("for example ")[2].partition(")")[0].split(", ")
    assert all(ceiling_of(stored, int(number)) for number in proposed)
