"""How serializers fit that no pair of real versions has, by the rules of their snapshot classes."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.contract.flink_serializers import Resolver
from statestore.contract.model import Level

AS_IS, RECONFIGURED, MIGRATION = Level.AS_IS, Level.RECONFIGURED, Level.MIGRATION
UNKNOWN, DROPS, INCOMPATIBLE = Level.UNKNOWN, Level.DROPS, Level.INCOMPATIBLE


def form(serializer: str, *nested: Any, **members: Any) -> dict[str, Any]:
    parts = {"nested": list(nested)} if nested else {}
    return {"serializer": serializer, **members, **parts}


def scala_enum(*constants: str) -> dict[str, Any]:
    return form("ScalaEnumSerializer", **{"class": "E", "constants": list(constants)})


def pojo(*fields: tuple[str, str | None], **more: Any) -> dict[str, Any]:
    """Return the form of a POJO of longs; the second part of a field is its superclass."""
    described = [
        {"name": name, "type": "Long"} | ({} if parent is None else {"declared_by": parent})
        for name, parent in fields
    ]
    return form("PojoSerializer", **{"class": "User", "fields": described, **more})


def subclass(name: str, *fields: str) -> dict[str, Any]:
    return {"class": name, "type": pojo(*((field, None) for field in fields))}


def custom(text: str) -> dict[str, Any]:
    return form("com.acme.MoneySnapshot", snapshot=text)


PAIR = form("ScalaCaseClassSerializer", "Long", "String", **{"class": "Pair"})
OTHER_PAIR = {**PAIR, "class": "Other"}
SEQ, SET = (form("TraversableSerializer", "Long", builder=code) for code in ("Seq", "Set"))
PADDED, PLAIN = (form("NullableSerializer", "Long", padding=length) for length in (8, 0))
OLD_ROW, ROW = (form("RowSerializer", "Long", has_kind=has_kind) for has_kind in (False, True))
TUPLE, OWN_TUPLE = (form("TupleSerializer", "Long", **{"class": name}) for name in ("Tuple1", "T"))
DECIMALS = [form("DecimalSerializer", precision=10, scale=scale) for scale in (2, 3)]
ONE, ONE_MORE = subclass("Admin", "a"), subclass("Admin", "a", "b")
GONE = {"class": "Admin"}


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [
        (PAIR, PAIR, AS_IS),
        (PAIR, OTHER_PAIR, INCOMPATIBLE),
        (SEQ, SEQ, AS_IS),
        (SEQ, SET, INCOMPATIBLE),
        (scala_enum("A=0"), scala_enum("A=0", "B=1"), AS_IS),
        (scala_enum("A=0", "B=1"), scala_enum("B=0", "A=1"), INCOMPATIBLE),
        (form("ScalaOptionSerializer", "Long"), form("ScalaOptionSerializer", "Long"), AS_IS),
        (PADDED, PADDED, AS_IS),
        (PADDED, PLAIN, INCOMPATIBLE),
        (OLD_ROW, ROW, MIGRATION),
        (TUPLE, OWN_TUPLE, UNKNOWN),
        (DECIMALS[0], DECIMALS[0], AS_IS),
        (*DECIMALS, INCOMPATIBLE),
        (custom("1"), custom("1"), AS_IS),
        (custom("1"), custom("2"), UNKNOWN),
        (custom("1"), "Long", INCOMPATIBLE),
        ("Long", custom("1"), UNKNOWN),
        ("Serializable", "Serializable", UNKNOWN),
        (pojo(("a", None)), pojo(("a", "Base")), AS_IS),
        (pojo(("a", "Base")), pojo(("a", None)), DROPS),
        (pojo(("a", "Base")), pojo(("a", "Other")), UNKNOWN),
        (pojo(), pojo(registered=[ONE]), AS_IS),
        (pojo(registered=[ONE]), pojo(registered=[ONE_MORE]), MIGRATION),
        (pojo(registered=[ONE]), pojo(), UNKNOWN),
        (pojo(registered=[GONE]), pojo(registered=[ONE]), INCOMPATIBLE),
        (pojo(subclasses=[ONE]), pojo(subclasses=[ONE]), RECONFIGURED),
        (pojo(subclasses=[ONE]), pojo(registered=[ONE_MORE]), UNKNOWN),
        (pojo(subclasses=[ONE]), pojo(), UNKNOWN),
    ],
)
def test_serializers(old: Any, new: Any, level: Level) -> None:
    fit = Resolver(2, 2).resolve(old, new, "value")
    assert fit.level == level, fit
    assert bool(fit.text) == (level != AS_IS)


def kryo(name: str, *registered: str) -> dict[str, Any]:
    return form("KryoSerializer", **{"class": name, "registered": [*registered]})


@pytest.mark.parametrize(
    ("old", "new", "level"),
    [(1, 1, AS_IS), (2, 2, AS_IS), (1, 2, INCOMPATIBLE), (None, 2, UNKNOWN), (2, None, UNKNOWN)],
)
def test_kryo_reads_what_its_own_version_wrote(
    old: int | None, new: int | None, level: Level
) -> None:
    fit = Resolver(old, new).resolve(kryo("java.util.UUID"), kryo("java.util.UUID"), "value")
    assert fit.level == level
    assert (fit.remedy is not None) == (level == INCOMPATIBLE)


def test_a_class_that_kryo_no_longer_knows() -> None:
    old, new = kryo("java.util.UUID", "A", "B"), kryo("java.util.UUID", "B")
    assert Resolver(2, 2).resolve(old, new, "value").level == UNKNOWN


def test_flink_2_has_no_serializers_of_scala() -> None:
    """The remedy is an export that writes other classes."""
    fit = Resolver(1, 2).resolve(PAIR, pojo(("a", None)), "value")
    assert fit.level == INCOMPATIBLE
    assert fit.remedy == "statestore flink export NEW --flink 2 --classes FILE --store STORE"
