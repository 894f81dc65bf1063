"""How the bytes of an old serializer fit a new one, by Flink's rules.

Each function follows ``resolveSchemaCompatibility`` of the snapshot class that it names. Where
Flink accepts bytes that the new serializer would misread, the fit is worse than Flink's answer:
``CompositeTypeSerializerSnapshot`` does not compare the classes of two composites, and
``KryoSerializerSnapshot`` knows neither the fields of a class nor the version of Kryo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.contract.avro_schemas import resolve_schemas
from statestore.contract.model import AS_IS, Fit, Level, fit_of, worst

__all__ = ["Resolver"]

Table = Mapping[str, Any]

_KRYO = "KryoSerializer"
_JAVA_OBJECT = "Serializable"
_GENERIC_RECORDS = ("avro.generic.GenericRecord", "avro.generic.GenericData$Record")
_MIGRATES = {"has_kind": "the kind of rows", "has_previous_time": "the time of the previous event"}
"""Members of composites whose change is a migration (``RowSerializer``, ``NFAStateSerializer``)."""

_KRYO_KNOWS = frozenset(
    (
        *(f"java.lang.{name}" for name in ("Boolean", "Byte", "Character", "Double", "Float")),
        *(f"java.lang.{name}" for name in ("Integer", "Long", "Short", "String", "Void")),
        *("java.math.BigDecimal", "java.math.BigInteger", "java.net.URI", "java.net.URL"),
        *(f"java.time.{name}" for name in ("Duration", "Instant", "LocalDate", "LocalDateTime")),
        *(f"java.time.{name}" for name in ("LocalTime", "MonthDay", "OffsetDateTime", "Period")),
        *(f"java.time.{name}" for name in ("OffsetTime", "Year", "YearMonth", "ZonedDateTime")),
        *(f"java.util.{name}" for name in ("BitSet", "Currency", "Date", "Locale", "UUID")),
    )
)
"""Classes of Java whose fields no job changes."""


@dataclass(frozen=True)
class Resolver:
    """The major versions of Flink that wrote the old bytes and that read them; None if unknown."""

    old_flink: int | None
    new_flink: int | None

    def resolve(self, old: Any, new: Any, path: str) -> Fit:
        """Return how the bytes of an old type fit a new type.

        Args:
            old: The form of the old type, from ``type_form``.
            new: The form of the new type.
            path: What has the type, for the reasons.
        """
        was, now = _title(old), _title(new)
        if was != now:
            return self._other_serializer(old, new, path)
        if isinstance(old, str):
            return _java_object(path) if old == _JAVA_OBJECT else AS_IS
        if "snapshot" in new:
            return AS_IS if old == new else _unknown_class(now, path)
        rule = _RULES.get(now, Resolver._composite)
        return worst(rule(self, old, new, path))

    def _other_serializer(self, old: Any, new: Any, path: str) -> Fit:
        was, now = _title(old), _title(new)
        if isinstance(new, Mapping) and "snapshot" in new:
            return _unknown_class(now, path)
        reason = f"{path}: {was} became {now}, and no serializer reads the bytes of another one"
        if self._is_upgrade and (was == _KRYO or was.startswith(("Scala", "Traversable"))):
            return fit_of(Level.INCOMPATIBLE, reason, _EXPORT_WITH_CLASSES)
        return fit_of(Level.INCOMPATIBLE, reason)

    @property
    def _is_upgrade(self) -> bool:
        """Whether Flink 2 reads the state of Flink 1."""
        return (self.old_flink, self.new_flink) == (1, 2)

    def _composite(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``CompositeTypeSerializerSnapshot``, and classes that only compare their members."""
        for member in sorted(({*old} | {*new}) - {"nested", "serializer"}):
            was, now = old.get(member), new.get(member)
            if was == now:
                continue
            if member in _MIGRATES:
                yield fit_of(
                    Level.MIGRATION, f"{path}: {_MIGRATES[member]} is stored now, or no longer"
                )
            else:
                yield _misfit(path, f"{member} was {_text(was)} and is {_text(now)}")
        yield from self._nested(old, new, path)

    def _nested(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        before, after = old.get("nested", ()), new.get("nested", ())
        if len(before) != len(after):
            yield _misfit(path, f"it had {len(before)} fields and has {len(after)}")
            return
        names = _PARTS.get(str(new["serializer"]), ())
        for number, (was, now) in enumerate(zip(before, after, strict=True)):
            name = names[number] if number < len(names) else f"f{number}"
            yield self.resolve(was, now, f"{path}.{name}")

    def _tuple(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``TupleSerializerSnapshot``, which does not compare the classes."""
        if old["class"] != new["class"] and len(old["nested"]) == len(new["nested"]):
            yield fit_of(
                Level.UNKNOWN,
                f"{path}: {old['class']} became {new['class']}; the hashmap state backend gives "
                "the job objects of the old class, which it can or cannot use",
            )
        yield from self._nested(old, new, path)

    def _pojo(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``PojoSerializerSnapshot``: fields by name, and subclasses."""
        if old["class"] != new["class"]:
            yield _misfit(path, f"the class {old['class']} became {new['class']}")
            return
        before, after = ({field["name"]: field for field in one["fields"]} for one in (old, new))
        for name, field in after.items():
            if name not in before or _moved_down(before[name], field):
                yield fit_of(Level.MIGRATION, f"{path}: the new field {name!r} gets Java's default")
        for name, field in before.items():
            if name not in after or _moved_down(field, after[name]):
                yield fit_of(
                    Level.DROPS, f"{path}: the new class has no field {name!r}: its values go"
                )
                continue
            parents = [one["declared_by"] for one in (field, after[name]) if "declared_by" in one]
            if len(set(parents)) > 1:
                yield fit_of(
                    Level.UNKNOWN,
                    f"{path}: the field {name!r} moved between superclasses; Flink finds it if the "
                    "new one is above the old one, and drops its values otherwise",
                )
            yield self.resolve(field["type"], after[name]["type"], f"{path}.{name}")
        yield from self._registered(old, new, path)
        yield from _other_subclasses(old, new, path)

    def _registered(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """Subclasses with numbers: the old numbers stay, and new ones follow."""
        before, after = (
            {each["class"]: each for each in one.get("registered", ())} for one in (old, new)
        )
        for name, subclass in before.items():
            if "type" not in subclass:
                yield _misfit(path, f"the old job had no serializer for the subclass {name}")
            elif name not in after:
                yield fit_of(
                    Level.UNKNOWN,
                    f"{path}: the subclass {name} is no longer registered; Flink keeps its number "
                    "if the class is still in the job, and refuses the state otherwise",
                )
            elif "type" in after[name]:
                yield self.resolve(subclass["type"], after[name]["type"], f"{path} ({name})")
        if [*before] != [*after][: len(before)]:
            yield fit_of(Level.RECONFIGURED, f"{path}: the subclasses keep their old numbers")

    def _enum(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``EnumSerializerSnapshot``: stored numbers keep their old order."""
        if old["class"] != new["class"]:
            yield _misfit(path, f"the enum {old['class']} became {new['class']}")
            return
        missing = [name for name in old["constants"] if name not in new["constants"]]
        if missing:
            yield _misfit(path, f"the enum {new['class']} lacks the constants {', '.join(missing)}")
        elif old["constants"] != new["constants"]:
            yield fit_of(
                Level.RECONFIGURED,
                f"{path}: the constants of {new['class']} keep their old numbers",
            )

    def _scala_enum(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``ScalaEnumSerializerSnapshot``: each name must keep its number."""
        if old["class"] != new["class"]:
            yield _misfit(path, f"the enumeration {old['class']} became {new['class']}")
        missing = [name for name in old["constants"] if name not in new["constants"]]
        if missing:
            yield _misfit(path, f"{new['class']} lacks the constants {', '.join(missing)}")

    def _avro(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``AvroSerializerSnapshot``: the resolution of Avro's schemas."""
        if old["class"] != new["class"]:
            yield fit_of(
                Level.UNKNOWN,
                f"{path}: the class {old['class']} became {new['class']}; Flink refuses the state "
                "if the old class is no longer in the job",
            )
        is_generic = new["class"].endswith(_GENERIC_RECORDS)
        yield resolve_schemas(old["schema"], new["schema"], path, is_generic=is_generic)

    def _kryo(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``KryoSerializerSnapshot``, and what it cannot see."""
        name = new["class"]
        if old["class"] != name:
            yield _misfit(path, f"Kryo's class {old['class']} became {name}")
            return
        if self._is_upgrade:
            yield fit_of(
                Level.INCOMPATIBLE,
                f"{path}: Kryo 2 of Flink 1 wrote {name}, and Kryo 5 of Flink 2 reads other values "
                "from its bytes, although Flink takes them as compatible",
                _EXPORT,
            )
            return
        before, after = old.get("registered", []), new.get("registered", [])
        if any(each not in after for each in before):
            gone = ", ".join(each for each in before if each not in after)
            yield fit_of(
                Level.UNKNOWN,
                f"{path}: {gone} is no longer registered with Kryo; Flink keeps its number if the "
                "class is still in the job, and refuses the state otherwise",
            )
        elif before != after[: len(before)]:
            yield fit_of(Level.RECONFIGURED, f"{path}: the classes keep their old numbers in Kryo")
        if self.old_flink is None or self.new_flink is None:
            yield fit_of(Level.UNKNOWN, f"{path}: nothing says which version of Kryo wrote {name}")
        if name not in _KRYO_KNOWS:
            yield fit_of(
                Level.UNKNOWN,
                f"{path}: Kryo's snapshot does not describe the fields of {name}; Flink starts, "
                "and fails or reads wrong values if they changed",
            )

    def _row_data(self, old: Table, new: Table, path: str) -> Iterator[Fit]:
        """``RowDataSerializerSnapshot``: the logical types must be equal."""
        before, after = old["types"], new["types"]
        if len(before) != len(after):
            yield _misfit(path, f"the row had {len(before)} columns and has {len(after)}")
            return
        for number, (was, now) in enumerate(zip(before, after, strict=True)):
            if was != now:
                yield _misfit(path, f"column {number} was {was} and is {now}")
        yield from self._nested(old, new, path)


Rule = Callable[[Resolver, Table, Table, str], Iterator[Fit]]

_RULES: Mapping[str, Rule] = {
    "AvroSerializer": Resolver._avro,
    "EnumSerializer": Resolver._enum,
    "KryoSerializer": Resolver._kryo,
    "PojoSerializer": Resolver._pojo,
    "RowDataSerializer": Resolver._row_data,
    "ScalaEnumSerializer": Resolver._scala_enum,
    "TupleSerializer": Resolver._tuple,
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "ArrayListSerializer": ("element",),
    "GenericArraySerializer": ("element",),
    "JavaEitherSerializer": ("left", "right"),
    "ListSerializer": ("element",),
    "MapSerializer": ("key", "value"),
    "NullableSerializer": ("value",),
    "ScalaOptionSerializer": ("value",),
    "SetSerializer": ("element",),
    "TraversableSerializer": ("element",),
    "TtlSerializer": ("value",),
}
_EXPORT = "statestore flink export NEW --flink 2 --store STORE"
_EXPORT_WITH_CLASSES = "statestore flink export NEW --flink 2 --classes FILE --store STORE"


def _moved_down(old: Table, new: Table) -> bool:
    """Return whether a field moved from a superclass to its subclass.

    ``PojoFieldUtils.getField`` looks for a field in the old declaring class and its superclasses.
    """
    return "declared_by" in old and "declared_by" not in new


def _other_subclasses(old: Table, new: Table, path: str) -> Iterator[Fit]:
    """Subclasses without numbers, of which Flink keeps the old serializers."""
    known = [*new.get("subclasses", ()), *new.get("registered", ())]
    for subclass in old.get("subclasses", ()):
        name = subclass["class"]
        if subclass in known:
            yield fit_of(Level.RECONFIGURED, f"{path}: the subclass {name} keeps its serializer")
        else:
            yield fit_of(
                Level.UNKNOWN,
                f"{path}: the new version says nothing about the subclass {name}; Flink reads its "
                "values with the old fields, and refuses the state if the class is gone",
            )


def _unknown_class(name: str, path: str) -> Fit:
    return fit_of(
        Level.UNKNOWN,
        f"{path}: only resolveSchemaCompatibility of {name} in the job knows whether the bytes fit",
    )


def _java_object(path: str) -> Fit:
    return fit_of(
        Level.UNKNOWN,
        f"{path}: Java serialized the objects, whose classes the snapshot does not name",
    )


def _misfit(path: str, reason: str) -> Fit:
    return fit_of(Level.INCOMPATIBLE, f"{path}: {reason}")


def _title(form: Any) -> str:
    return form if isinstance(form, str) else str(form["serializer"])


def _text(value: Any) -> str:
    return "missing" if value is None else str(value)
