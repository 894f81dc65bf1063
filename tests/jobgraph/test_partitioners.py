"""Partitioners send records to the same channels as Flink's, and each has its edge's wiring."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, NullKeyError, ParallelismError
from statestore.jobgraph.partitioners import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroup,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    StateMapper,
    Wiring,
    key_group_channel,
    pointwise,
    wiring,
)
from statestore.keys.groups import KeyGroupAssignment, default_max_parallelism
from statestore.keys.hashing import key_group_of, key_hash
from tests.support.vectors import cases, key_of

CHANNELS = cases("partitioners", "channels")

ERRORS: dict[str, type[Exception]] = {
    "parallelism_out_of_bounds": InvalidArgumentError,
    "broadcast_has_no_channel": InvalidArgumentError,
}

parallelisms = st.integers(1, 60)


def _modulo(key: Any, channels: int) -> int:
    return key_hash(key) % channels


def _partitioner(asked: dict[str, Any]) -> Partitioner:
    by_kind: dict[str, Any] = {
        "global": Global,
        "forward": Forward,
        "rescale": Rescale,
        "broadcast": Broadcast,
        "rebalance": lambda: Rebalance(asked["first"]),
        "custom_modulo": lambda: Custom(_modulo),
        "key_group": lambda: KeyGroup(
            key="k", max_parallelism=asked.get("configure", asked.get("max"))
        ),
    }
    made: Partitioner = by_kind[asked["kind"]]()
    return made


def _channels(asked: dict[str, Any]) -> list[int]:
    partitioner, n = _partitioner(asked), asked["channels"]
    if "keys" in asked:
        return [partitioner.channel(n, key=key_of(key)) for key in asked["keys"]]
    return [partitioner.channel(n, index=index) for index in range(asked["count"])]


# --- Flink's answers ------------------------------------------------------------------------------


def test_every_vector_is_tested() -> None:
    """Vectors about other subjects are in test_wiring.py. Each error has its class."""
    operations = {case["in"]["op"] for case in cases("partitioners")}
    assert operations == {"channels", "pointwise", "state_mapper"}
    assert {case["error"] for case in CHANNELS if "error" in case} == set(ERRORS)


def test_every_record_takes_flinks_channel() -> None:
    """The result of Flink's class for each record, or its error."""
    for case in CHANNELS:
        if "error" in case:
            with pytest.raises(ERRORS[case["error"]]):
                _channels(case["in"])
        else:
            assert _channels(case["in"]) == case["out"]


# --- Names and sides ------------------------------------------------------------------------------

ALL: list[Partitioner] = [
    Global(),
    Shuffle(1),
    Rebalance(0),
    Rescale(),
    Broadcast(),
    Forward(),
    KeyGroup(key="k"),
    Custom(_modulo),
]


def test_names_equal_flinks() -> None:
    """A job graph calls the key-group partitioner HASH."""
    assert [str(each) for each in ALL] == [
        *("GLOBAL", "SHUFFLE", "REBALANCE", "RESCALE", "BROADCAST", "FORWARD", "HASH", "CUSTOM")
    ]


def test_each_side_has_flinks_mapper() -> None:
    """Pointwise and broadcast edges cannot be rescaled, on either side."""
    receiving = ["FIRST", "ROUND_ROBIN", "ROUND_ROBIN", *["UNSUPPORTED"] * 3, "RANGE", "FULL"]
    assert [each.receiving for each in ALL] == receiving
    refused = [each for each in ALL if each.sending is StateMapper.UNSUPPORTED]
    assert refused == [Rescale(), Broadcast(), Forward()]
    assert {each.sending for each in ALL if each not in refused} == {StateMapper.ARBITRARY}


@pytest.mark.parametrize("partitioner", ALL, ids=str)
def test_a_partitioner_is_a_value(partitioner: Partitioner) -> None:
    """It survives pickling and is hashable. A single column name is one name and not a list of
    letters.
    """
    copy = pickle.loads(pickle.dumps(partitioner))
    assert {copy, partitioner} == {partitioner}
    assert KeyGroup(key="id").key == Custom(_modulo, "id").key == ("id",)


# --- Channels -------------------------------------------------------------------------------------


@given(channels=parallelisms, data=st.data())
def test_rebalance_visits_every_channel_once_a_round(channels: int, data: Any) -> None:
    """The first record goes to the channel after the random start, which comes last."""
    first = data.draw(st.integers(0, channels - 1))
    begin = data.draw(st.integers(0, 10**12))
    got = [Rebalance(first).channel(channels, index=i) for i in range(channels)]
    assert got == [*range(first + 1, channels), *range(first + 1)]
    later = {Rebalance(first).channel(channels, index=begin + i) for i in range(channels)}
    assert later == set(range(channels))


@given(channels=parallelisms, index=st.integers(0, 2**40))
def test_broadcast_is_every_channel_and_no_single_one(channels: int, index: int) -> None:
    """The request for a single channel is an error, as in Flink. All other partitioners return
    exactly one.
    """
    assert Broadcast().channels(channels, index=index) == tuple(range(channels))
    with pytest.raises(InvalidArgumentError, match=f"{channels} channels"):
        Broadcast().channel(channels, index=index)
    assert Rescale().channels(channels, index=index) == (index % channels,)
    assert Global().channels(channels, index=index) == (0,)


@given(channels=st.integers(1, 32_768), seed=st.integers(-(2**63), 2**63 - 1), index=st.integers(0))
def test_a_shuffle_with_a_seed_is_deterministic(channels: int, seed: int, index: int) -> None:
    """The channel is always in range, and the same seed and index always give the same one."""
    channel = Shuffle(seed).channel(channels, index=index)
    assert 0 <= channel < channels
    assert channel == Shuffle(seed).channel(channels, index=index)


@pytest.mark.slow
def test_a_shuffle_reaches_all_channels_alike() -> None:
    """Each channel gets its share within four standard deviations, after any previous channel.
    Seeds differ.
    """
    counts = Counter(Shuffle(7).channel(10, index=index) for index in range(100_000))
    assert set(counts) == set(range(10))
    assert all(abs(count - 10_000) < 4 * 95 for count in counts.values())
    pairs = Counter(pairwise(Shuffle(7).channel(3, index=index) for index in range(9_000)))
    assert len(pairs) == 9
    assert [Shuffle(7).channel(2, index=i) for i in range(64)] != [
        Shuffle(8).channel(2, index=i) for i in range(64)
    ]
    assert all(abs(count - 1_000) < 4 * 30 for count in pairs.values())


@given(channels=parallelisms, seed=st.integers())
def test_a_random_start_is_drawn_once(channels: int, seed: int) -> None:
    """A start is in range, depends only on the generator, and is not drawn again."""
    rebalance = Rebalance().started(channels, Random(seed))
    assert rebalance == Rebalance().started(channels, Random(seed))
    assert rebalance.started(channels) == rebalance
    assert 0 <= rebalance.channel(channels) < channels
    shuffle = Shuffle().started(channels, Random(seed))
    assert shuffle.started(channels) == shuffle
    assert 0 <= shuffle.channel(channels) < channels


def test_every_start_is_drawn() -> None:
    """The starts 0 and n - 1 occur. A partitioner without randomness draws nothing."""
    drawn = {Rebalance().started(4).channel(4) for _ in range(300)}
    assert drawn == {0, 1, 2, 3}
    assert Global().started(4) == Global()
    assert Rebalance(2).started(4) == Rebalance(2)


@pytest.mark.parametrize("partitioner", [Shuffle(), Rebalance()], ids=str)
def test_a_channel_is_not_known_before_the_start_is_drawn(partitioner: Partitioner) -> None:
    """Two calls would return results for two different subtasks."""
    with pytest.raises(InvalidArgumentError, match=r"started\(\)"):
        partitioner.channel(4)


@given(
    key=st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9),
    parallelism=parallelisms,
    data=st.data(),
)
def test_a_key_goes_to_the_owner_of_its_group(key: Any, parallelism: int, data: Any) -> None:
    """The record goes to the subtask that restores the key's state, under every scheme."""
    maximum = data.draw(st.integers(parallelism, 32_768))
    scheme = data.draw(st.sampled_from(["java", "flink-sql", "pyflink"]))
    group = key_group_of(key, max_parallelism=maximum, hash_scheme=scheme)
    owners = KeyGroupAssignment(max_parallelism=maximum, parallelism=parallelism)
    partitioner = KeyGroup(key="k", max_parallelism=maximum, hash_scheme=scheme)
    assert partitioner.channel(parallelism, key=key) == owners.subtask_of(group)


@given(hashed=st.integers(-(2**31), 2**31 - 1), maximum=st.integers(1, 99), n=st.integers(1, 99))
def test_fewer_key_groups_than_channels_is_allowed(hashed: int, maximum: int, n: int) -> None:
    """Every channel is in range, and at most as many channels as key groups are used."""
    assert 0 <= key_group_channel(hashed, maximum, n) < n
    used = {key_group_channel(other, maximum, n) for other in range(200)}
    assert len(used) <= min(maximum, n)


@given(parallelism=st.integers(1, 32_768))
def test_max_parallelism_is_derived_when_not_given(parallelism: int) -> None:
    """The value depends on the consumer's parallelism, as in a job without configuration."""
    derived = default_max_parallelism(parallelism)
    assert KeyGroup(key="k").max_at(parallelism) == derived
    assert KeyGroup(key="k", max_parallelism=77).max_at(parallelism) == 77


# --- Wiring ---------------------------------------------------------------------------------------


@given(up=parallelisms, down=parallelisms)
def test_all_to_all_edges_connect_everybody(up: int, down: int) -> None:
    """Channel i is subtask i. Pointwise edges have the pointwise wiring."""
    expected = Wiring(((0, up - 1),) * down, (tuple(range(down)),) * up)
    assert all(wiring(each, up, down) == expected for each in ALL if not each.is_pointwise)
    assert wiring(Rescale(), up, down) == pointwise(up, down)
    assert wiring(Forward(), up, up) == Wiring(
        tuple((i, i) for i in range(up)), tuple((i,) for i in range(up))
    )


@pytest.mark.parametrize(("up", "down"), [(2, 3), (3, 2), (1, 32_768)])
def test_forward_needs_equal_parallelism(up: int, down: int) -> None:
    """The message has both values, and the partitioner to use instead."""
    with pytest.raises(ParallelismError, match=rf"{up} to {down}.*Rescale"):
        wiring(Forward(), up, down)


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, 32_769])
def test_numbers_out_of_bounds_are_refused(wrong: int) -> None:
    """Channels, parallelism and max parallelism are in 1..32768. The message names the
    invalid one.
    """
    for partitioner in ALL:
        with pytest.raises(InvalidArgumentError, match=rf"channels .*1\.\.32768, not {wrong}"):
            partitioner.channels(wrong, key=1)
        with pytest.raises(InvalidArgumentError, match="channels"):
            partitioner.started(wrong)
    with pytest.raises(InvalidArgumentError, match=f"max parallelism .* not {wrong}"):
        KeyGroup(key="k", max_parallelism=wrong)
    with pytest.raises(InvalidArgumentError, match=r"max parallelism .*1\.\.32768"):
        key_group_channel(1, wrong, 4)
    for up, down, side in ((wrong, 2, "upstream"), (2, wrong, "downstream")):
        with pytest.raises(InvalidArgumentError, match=f"^{side} .* not {wrong}"):
            wiring(Global(), up, down)


@pytest.mark.parametrize("wrong", [True, 2.0, "2", None])
def test_a_value_that_is_not_a_number_is_refused(wrong: Any) -> None:
    """2.0 is not a number of channels, and True would silently become 1."""
    with pytest.raises(InvalidArgumentError, match="channels"):
        Global().channel(wrong)
    with pytest.raises(InvalidArgumentError, match="index"):
        Rescale().channel(2, index=wrong)


@pytest.mark.parametrize("answer", [-1, 3, 2**40, None, True, 1.0, "1"])
def test_an_invalid_channel_of_a_custom_function_is_refused(answer: Any) -> None:
    """The message names the result, the key and the number of channels."""
    with pytest.raises(InvalidArgumentError) as caught:
        Custom(lambda key, channels: answer).channel(3, key="berlin")
    assert all(part in str(caught.value) for part in (repr(answer), "'berlin'", "0..2"))


def test_a_custom_function_may_answer_with_any_channel() -> None:
    """The function receives the key and the number of channels. The first and last channel are
    valid.
    """
    assert Custom(lambda key, channels: channels - key).channel(5, key=5) == 0
    assert Custom(lambda key, channels: channels - key).channel(5, key=1) == 4


@pytest.mark.parametrize("first", [-1, 4, True, 1.0, "0"])
def test_an_invalid_start_channel_is_refused(first: Any) -> None:
    """The check happens where the number of channels is known."""
    for ask in (Rebalance(first).channel, Rebalance(first).started):
        with pytest.raises(InvalidArgumentError, match=r"0\.\.3 with 4 channels"):
            ask(4)


def test_other_wrong_arguments_are_refused() -> None:
    """Each has its error class, and is raised where the argument is passed."""
    with pytest.raises(InvalidArgumentError, match="not -1"):
        Rescale().channel(2, index=-1)
    for seed in (2**63, -(2**63) - 1, "7", True, 1.5):
        with pytest.raises(InvalidArgumentError, match="64-bit"):
            Shuffle(seed)  # type: ignore[arg-type]
    with pytest.raises(NullKeyError):
        KeyGroup(key="k").channel(2, key=None)
    with pytest.raises(InvalidArgumentError, match="key='id'"):
        KeyGroup(key=())
    with pytest.raises(InvalidArgumentError, match="java, flink-sql, pyflink"):
        KeyGroup(key="k", hash_scheme="python")
    with pytest.raises(InvalidArgumentError, match="function"):
        Custom(7)  # type: ignore[arg-type]
