"""The types of the job that restores the savepoint, as the user of the export declares them.

They replace types of Flink's Scala API, which Flink 2 does not have. The user names the class that
replaces a case class or an enumeration. A tuple of Scala becomes the tuple of Flink with as many
fields, a collection becomes a list, and an ``Either`` that of Flink. An ``Option`` can only be a
field of a POJO, where it is a null. The rows of the store keep their columns: only the serializers
change, and with them the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateNotFoundError,
    UnsupportedTypeError,
)
from statestore.format.state import KeyedState, OperatorState
from statestore.interop.flink.columns.declared_columns import ColumnFitter, JobClass
from statestore.interop.flink.columns.declared_types import DeclaredType, parse_declared_type
from statestore.interop.flink.columns.state_columns import EntryForm
from statestore.interop.flink.exporting.flink_versions import Collections, parse_collection
from statestore.interop.flink.importing.import_record import ImportedState, SavepointRecord
from statestore.interop.flink.metadata.java_binary import i32
from statestore.interop.flink.metadata.versions import parse_flink_major
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.operator_parts import read_whole_snapshot
from statestore.interop.flink.types.base import FlinkType, nested_types, replace_parts
from statestore.interop.flink.types.internal_types import TimerType, TtlAwareType, TtlType
from statestore.interop.flink.types.java_types import (
    EitherType,
    EnumType,
    ListType,
    MapType,
    TupleType,
)
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.scala_types import (
    CaseClassType,
    OptionType,
    ScalaEnumType,
    TraversableType,
    TryType,
)
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.interop.flink_plans.plan_file import FlinkPlan

_SCALA_TUPLE = re.compile(r"scala\.Tuple(\d+)(\$mc.*)?")
_JAVA_TUPLE = "org.apache.flink.api.java.tuple.Tuple"
_MOST_FIELDS = 25
_SCALA_TYPES = (CaseClassType, OptionType, ScalaEnumType, TraversableType, TryType)
_PROXY = 2
_PARTS_AS_BYTES = {
    EntryForm.VALUE_BYTES: ("value",),
    EntryForm.KEY_COLUMNS_VALUE_BYTES: ("value",),
    EntryForm.KEY_BYTES: ("key",),
    EntryForm.BYTES: ("key", "namespace", "value"),
}


@dataclass(frozen=True)
class ClassMapping:
    """The class of Java that replaces a class of Scala: a POJO, an enum, or else a tuple.

    ``fields`` are the names of the POJO's fields, in the order of the case class. ``key_hash`` is a
    recipe for keys, as in an import. ``collections`` are the field types of a class that already is
    a POJO. ``described`` is a Java class that replaces no Scala class.
    """

    pojo: str | None = None
    enum: str | None = None
    fields: tuple[str, ...] = ()
    key_hash: str | None = None
    collections: Mapping[str, FlinkType] = field(default_factory=dict)
    described: JobClass | None = None

    @property
    def kind(self) -> str:
        """``described``, ``collections``, ``pojo``, ``enum`` or ``tuple``."""
        if self.described is not None:
            return "described"
        if self.collections:
            return "collections"
        return "pojo" if self.pojo is not None else "tuple" if self.enum is None else "enum"


def parse_class_mapping(classes: Mapping[str, Any]) -> dict[str, ClassMapping]:
    """Parse a user's descriptions of classes.

    Args:
        classes: the descriptions, by class name. For a Scala class: ``{"tuple": True}``, ``{"pojo":
            name, "fields": [names]}`` or ``{"enum": name}``; a class of keys also has ``hash``. For
            a POJO: ``{"collections": {field: type}}``. For another Java class: ``{"fields": {name:
            type}}``, with ``hash`` if it is a key, or ``{"constants": [names]}``.

    Raises:
        InvalidArgumentError: for a mapping of another form, with the class.
    """
    return {name: _parse_mapping(name, given) for name, given in classes.items()}


def _parse_mapping(name: str, given: Any) -> ClassMapping:
    if isinstance(given, dict):
        members, constants = given.get("fields"), given.get("constants")
        if isinstance(members, dict) and members and {*given} <= {"fields", "hash"}:
            return _parse_pojo(name, members, given.get("hash"))
        if isinstance(constants, list) and constants and len(given) == 1:
            return _parse_enum(name, constants)
    declared = given.get("collections") if isinstance(given, dict) and len(given) == 1 else None
    if isinstance(declared, dict) and declared:
        collections = {
            member: parse_collection(text, f"{name}.{member}") for member, text in declared.items()
        }
        return ClassMapping(collections=collections)
    forms: tuple[set[str], ...] = ({"tuple"}, {"pojo", "fields"}, {"enum"})
    if (
        not isinstance(given, dict)
        or {*given} - {"hash"} not in forms
        or given.get("tuple") is False
    ):
        raise InvalidArgumentError(
            f"the class {name!r} is mapped to {given!r}: set tuple = true, or pojo = '…' with "
            "fields = ['…'], or enum = '…'; for a class of Java, set fields = {field = 'type'}, "
            "collections = {field = 'type'} or constants = ['…']"
        )
    members = given.get("fields", [])
    texts = [text for key, text in given.items() if key in ("pojo", "enum", "hash")]
    if not isinstance(members, list) or not all(isinstance(x, str) for x in (*texts, *members)):
        raise InvalidArgumentError(f"the class {name!r} is mapped to {given!r}: names must be text")
    if len({*members}) != len(members):
        raise InvalidArgumentError(
            f"the class {name!r} is mapped to a POJO that names a field twice"
        )
    return ClassMapping(given.get("pojo"), given.get("enum"), tuple(members), given.get("hash"))


def _parse_pojo(name: str, members: Mapping[str, Any], key_hash: Any) -> ClassMapping:
    if not all(
        isinstance(text, str) for text in (*members.values(), "" if key_hash is None else key_hash)
    ):
        raise InvalidArgumentError(f"the class {name!r} has a field or hash that is not text")
    fields = {
        member: parse_declared_type(text, f"the field {member!r} of {name}")
        for member, text in members.items()
    }
    return ClassMapping(key_hash=key_hash, described=JobClass(fields=fields))


def _parse_enum(name: str, constants: list[Any]) -> ClassMapping:
    if not all(isinstance(text, str) for text in constants) or len({*constants}) < len(constants):
        raise InvalidArgumentError(
            f"the enum {name!r} has the constants {constants!r}: list each name once, in "
            "the order of the class"
        )
    return ClassMapping(described=JobClass(constants=tuple(constants)))


def list_collections(classes: Mapping[str, ClassMapping]) -> Collections:
    """Return the declared types of the collection fields of POJOs."""
    return {
        (name, member): content
        for name, mapping in classes.items()
        for member, content in mapping.collections.items()
    }


def replace_scala_types(known: ImportedState, classes: Mapping[str, ClassMapping]) -> ImportedState:
    """Return the record of a state as if its types had been those of Java.

    Raises UnsupportedTypeError for a class without a mapping, and for a type that cannot be
    replaced, with the state.
    """
    where = f"state {known.state!r} of operator {known.operator!r}"
    replacing = _Replacing(where, classes)
    names = dict(known.names)
    changed: dict[str, Any] = {}
    for member in ("key_serializer", "namespace_serializer", "value_serializer"):
        raw: bytes | None = getattr(known, member)
        if raw is None:
            continue
        before = _read(raw, where).flink_type
        if not _has_scala(before):
            continue
        part = member.removesuffix("_serializer")
        if part in _PARTS_AS_BYTES.get(known.form, ()):
            raise UnsupportedTypeError(
                f"{where} cannot be written for Flink 2: its {part}s are bytes with types of "
                f"Flink's Scala API. Leave it out with --leave-out {known.operator}/{known.state}"
            )
        after = replacing.replace_part(before, part, known, names)
        changed[member] = after.snapshot()
    if "key_serializer" in changed and known.is_keyed:
        changed["key_hash"] = replacing.find_recipe(known.key.flink_type)
    return replace(known, names=names, **changed)


def _read(raw: bytes, where: str) -> SerializerSnapshot:
    return read_whole_snapshot(i32(_PROXY) + raw, where)


def _has_scala(flink_type: FlinkType) -> bool:
    return any(
        isinstance(nested, _SCALA_TYPES)
        or (isinstance(nested, EitherType) and nested.form == "ScalaEither")
        for nested in nested_types(flink_type)
    )


@dataclass(frozen=True)
class _Replacing:
    """Replaces the types of a state; ``where`` is the state in messages."""

    where: str
    classes: Mapping[str, ClassMapping]

    def replace_part(
        self,
        before: FlinkType,
        part: str,
        known: ImportedState,
        names: dict[str, tuple[str, ...]],
    ) -> FlinkType:
        """Return the type of a key, namespace or value in the header.

        If the fields of its columns change their order, so do their ``names``.
        """
        if not known.is_keyed:
            return self._replace_nested(before)
        if part == "value" and known.kind == "list" and isinstance(before, ListType):
            return replace(before, element=self._replace(before.element, "value", names))
        if part == "value" and known.kind == "map" and isinstance(before, MapType):
            key = self._replace(before.key, "map_key", names)
            return replace(before, key=key, value=self._replace_nested(before.value))
        if isinstance(before, TimerType):  # the columns are those of the key in the header
            return replace(before, key=self._replace(before.key, "key", dict(names)))
        return self._replace(before, part, names)

    def find_recipe(self, key: FlinkType) -> str | None:
        """Return the recipe for the hashes of a replaced key; None for a tuple, which needs none.

        Raises UnsupportedTypeError for a POJO without a recipe.
        """
        mapping = self.classes.get(key.class_name) if isinstance(key, CaseClassType) else None
        if mapping is None or mapping.pojo is None:
            return None
        if mapping.key_hash is None:
            raise UnsupportedTypeError(
                f"{self.where} has keys that become {mapping.pojo}, whose hash decides their key "
                'groups: set hash = "record(a, b)" next to the POJO, with the fields of its '
                "hashCode()"
            )
        return mapping.key_hash

    def _replace(
        self, before: FlinkType, part: str, names: dict[str, tuple[str, ...]]
    ) -> FlinkType:
        """Replace the type of a whole key or value, whose fields are columns."""
        if isinstance(before, TtlType | TtlAwareType):
            return replace(before, value=self._replace(before.value, part, names))
        if not isinstance(before, CaseClassType):
            return self._replace_nested(before)
        after = self._replace_case_class(before, is_flat=True)
        if isinstance(after, PojoType):
            given = self.classes[before.class_name].fields
            order = [given.index(field.name) for field in after.fields]
            names[part] = tuple(names[part][index] for index in order)
        return after

    def _replace_nested(self, before: FlinkType) -> FlinkType:
        return replace_parts(before, self._find_replacement)

    def _find_replacement(self, before: object) -> FlinkType | None:
        """Return the type that replaces a Scala type; None for any other part of a type."""
        if isinstance(before, CaseClassType):
            return self._replace_case_class(before, is_flat=False)
        if isinstance(before, ScalaEnumType):
            enum = self._find_mapping(before.class_name, "enum").enum
            assert enum is not None, "the mapping says an enum"
            return EnumType(enum, tuple(name for name, _ in before.constants))
        if isinstance(before, TraversableType):
            return ListType(self._replace_nested(before.element))
        if isinstance(before, EitherType) and before.form == "ScalaEither":
            left, right = map(self._replace_nested, (before.left, before.right))
            return EitherType(left, right)
        if isinstance(before, OptionType | TryType):
            raise UnsupportedTypeError(
                f"{self.where} has values of {before.java_name}, which no type of Java replaces"
                + ("; as a field of a POJO it becomes a null" * isinstance(before, OptionType))
            )
        return None

    def _replace_case_class(self, before: CaseClassType, *, is_flat: bool) -> FlinkType:
        scala_tuple = _SCALA_TUPLE.fullmatch(before.class_name)
        if scala_tuple is not None and before.class_name not in self.classes:
            return self._make_tuple(before)
        mapping = self._find_mapping(before.class_name, "tuple", "pojo")
        if mapping.pojo is None:
            return self._make_tuple(before)
        if len(mapping.fields) != len(before.fields):
            raise InvalidArgumentError(
                f"{before.class_name} has {len(before.fields)} fields, but its POJO "
                f"{mapping.pojo} has {len(mapping.fields)}: {', '.join(mapping.fields)}"
            )
        members = [
            PojoField(name, mapping.pojo, self._replace_pojo_field(field))
            for name, field in zip(mapping.fields, before.fields, strict=True)
        ]
        by_name = sorted(members, key=lambda member: member.name)  # the order of PojoSerializer
        if by_name != members and not is_flat:
            raise UnsupportedTypeError(
                f"{self.where} has {before.class_name} within another value, and the fields of "
                f"{mapping.pojo} are not in the order of their names: map it to a tuple"
            )
        return PojoType(mapping.pojo, tuple(by_name))

    def _replace_pojo_field(self, field: FlinkType) -> FlinkType:
        return self._replace_nested(field.value if isinstance(field, OptionType) else field)

    def _make_tuple(self, before: CaseClassType) -> FlinkType:
        if len(before.fields) > _MOST_FIELDS:
            raise UnsupportedTypeError(
                f"{self.where} has {before.class_name} with {len(before.fields)} fields, but a "
                f"tuple of Flink has at most {_MOST_FIELDS}: map it to a POJO"
            )
        replaced = tuple(map(self._replace_nested, before.fields))
        return TupleType(f"{_JAVA_TUPLE}{len(replaced)}", replaced)

    def _find_mapping(self, class_name: str, *kinds: str) -> ClassMapping:
        mapping = self.classes.get(class_name)
        if mapping is None or mapping.kind not in kinds:
            raise UnsupportedTypeError(
                f"{self.where} has the class {class_name} of Scala, for which Flink 2 has no "
                f"serializer: name the {' or '.join(kinds)} that replaces it (--classes FILE, or "
                f"FlinkTarget(classes={{{class_name!r}: …}}) in Python), or leave the state out"
            )
        return mapping


@dataclass(frozen=True)
class JobTypes:
    """The declared types of a job.

    Attributes:
        keys: the types of keys, by operator.
        states: the types of states, by operator and state: of a value, a ``List`` or a ``Map``.
        classes: the user's descriptions of classes, by class name.
        flink_major: 1 or 2, the version of Flink, or None if the user does not give it.
        differences: the columns that do not fit; filled while an export is planned.
    """

    keys: Mapping[str, DeclaredType] = field(default_factory=dict)
    states: Mapping[tuple[str, str], DeclaredType] = field(default_factory=dict)
    classes: Mapping[str, ClassMapping] = field(default_factory=dict)
    flink_major: int | None = None
    differences: list[str] = field(default_factory=list)

    def make_fitter(self, state: KeyedState | OperatorState) -> ColumnFitter:
        """Return an object that fits the columns of a state to declared types."""
        described: dict[str, JobClass] = {
            name: mapping.described
            for name, mapping in self.classes.items()
            if mapping.described is not None
        }
        return ColumnFitter(str(state), described, self.flink_major, self.differences)

    def refuse_differences(self) -> None:
        """Raise SchemaMismatchError with each column that does not fit its declared type."""
        if not self.differences:
            return
        count = len(self.differences)
        error = SchemaMismatchError(
            f"{self.differences[0]}. Bootstrap the state with such columns, or correct the type "
            "(--java-type, --classes)"
            if count == 1
            else f"{count} columns do not fit the types of the job; bootstrap the states with such "
            "columns, or correct the types (--java-type, --classes)"
        )
        for difference in self.differences if count > 1 else ():
            error.add_note(difference)
        raise error


def parse_job_types(
    target: FlinkTarget,
    known: Collection[tuple[str, str]],
    uids: Sequence[str],
    record: SavepointRecord | None,
    compiled: FlinkPlan | None,
) -> JobTypes:
    """Parse the declared types of a job.

    Args:
        target: the job.
        known: operator and name of each state of the checkpoint.
        uids: the operators of the checkpoint.
        record: the imported savepoint; None for a store that was not imported.
        compiled: the compiled plan that defines the types of states; None without one.

    Returns:
        The types.

    Raises:
        StateNotFoundError: for the type of an operator or state that the checkpoint does not have.
        InvalidArgumentError: for an invalid type, an invalid description of a class, or a type for
            a state that was imported or that a compiled plan describes.
    """
    imported = {(state.operator, state.state) for state in record.states} if record else set()
    planned = {(state.operator, state.state) for state in compiled.states} if compiled else set()
    keys: dict[str, DeclaredType] = {}
    states: dict[tuple[str, str], DeclaredType] = {}
    for name, text in (target.types or {}).items():
        own = [state for state in known if "/".join(state) == name]
        if name not in uids and not own:
            stored = ", ".join(sorted("/".join(state) for state in known))
            raise StateNotFoundError(
                f"a type is given for {name!r}, which does not exist: name an operator, for its "
                f"keys, or OPERATOR/STATE. The checkpoint has {stored}"
            )
        if own and name in uids:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, which is both an operator and a state of another"
            )
        if imported & {*own, *(state for state in known if state[0] == name)}:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, but it was imported from a savepoint and keeps "
                "the job's own serializers: remove the type"
            )
        if planned & {*own, *(state for state in known if state[0] == name)}:
            raise InvalidArgumentError(
                f"a type is given for {name!r}, but its types are those of a compiled plan: remove "
                "the type"
            )
        declared = parse_declared_type(text, f"the type of {name!r}")
        if own:
            states[own[0]] = declared
        else:
            keys[name] = declared
    classes = parse_class_mapping(target.classes or {})
    major = parse_flink_major(target.version, "the version of the target")
    return JobTypes(keys, states, classes, major)
