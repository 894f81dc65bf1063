"""Pairs of versions of a Flink job: what changes, and the verdict about the old state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.contract.evolved_jobs import Pair, Version

__all__ = ["PAIRS"]

SAME, CONVERTS, EMPTY = "same", "converts", "begins empty"
LOST, UNFIT, UNKNOWN = "is lost", "does not fit", "unknown"

LONG, STRING = "Types.LONG", "Types.STRING"
USER = "Types.POJO(User.class)"
COLOR = "Types.ENUM(Color.class)"
BY_ID = (
    "public int hashCode() { return (int) id; } public boolean equals(Object o)"
    " { return o instanceof User && ((User) o).id == id; }"
)


def classes(*texts: str) -> str:
    """Return classes; ``User: long id; String name`` is one with public fields."""
    return "\n".join(_class(text) for text in texts)


def _class(text: str) -> str:
    if text.startswith(("enum ", "class ", "record ")):
        return f"    public static {text}"
    head, _, fields = text.partition(":")
    public = " ".join(f"public {field.strip()};" for field in fields.split(";"))
    return f"    public static class {head} {{ {public} }}"


def state(kind: str, *types: str, name: str = "state", more: str = "") -> str:
    """Return the Java of a state."""
    return f'Evolved.{kind}("{name}", {", ".join(types)}){more}'


def job(*states: str, key: str = LONG, uid: str = '"op"', add: str = "keyed") -> str:
    """Return the Java of an operator with keyed states."""
    return f"        job.{add}({', '.join((uid, key, *states))});"


def version(kind: str, *types: str, of: tuple[str, ...] = (), more: str = "") -> Version:
    """Return a version whose operator has one state."""
    return Version(job(state(kind, *types, more=more)), classes(*of))


def of_both(name: str, versions: Iterable[Version], verdict: str) -> Pair:
    """Return a pair of the old and the new version."""
    old, new = versions
    return Pair(name, old, new, verdict)


def user(fields: str, *others: str, kind: str = "value", more: str = "") -> Version:
    """Return a version with a state of users, whose class has these fields."""
    types = (STRING, USER) if kind == "map" else (USER,)
    return version(kind, *types, of=(f"User: {fields}", *others), more=more)


def _pojos() -> Iterator[Pair]:
    old = user("long id; String name")
    yield Pair("pojo unchanged", old, user("long id; String name; "[:-2]), SAME)
    yield Pair("pojo field added", old, user("long id; String name; int age"), CONVERTS)
    yield Pair("pojo field removed", old, user("long id"), LOST)
    yield Pair("pojo field renamed", old, user("long id; String title"), LOST)
    yield Pair("pojo fields reordered", old, user("String name; long id"), SAME)
    yield Pair("pojo field widened", user("int id"), user("long id"), UNFIT)
    yield Pair("pojo field boxed", user("int id"), user("Integer id"), SAME)
    yield Pair("pojo field of another type", old, user("long id; byte[] name"), UNFIT)
    renamed = version("value", "Types.POJO(Person.class)", of=("Person: long id; String name",))
    yield Pair("pojo class renamed", old, renamed, UNFIT)
    nested = user("long id; Place place", "Place: int zip")
    more = user("long id; Place place", "Place: int zip; String street")
    yield Pair("nested pojo field added", nested, more, CONVERTS)
    yield Pair("nested pojo field removed", more, nested, LOST)
    for kind in ("list", "map", "reducing"):
        before, after = (user(fields, kind=kind) for fields in ("long id", "long id; String name"))
        yield Pair(f"pojo field added in a {kind} state", before, after, CONVERTS)
    parent = user("long id", "class Base { public String name; }")
    child = replace(
        parent,
        classes=classes(
            "class User extends Base { public long id; }", "class Base { public String name; }"
        ),
    )
    up = replace(child, classes=child.classes.replace("class Base {", "class Base { /* up */"))
    yield Pair("pojo superclass unchanged", child, up, SAME)
    both = user("long id; String name")
    yield Pair("pojo field moved to a superclass", both, child, SAME)
    yield Pair("pojo field moved from a superclass", child, both, LOST)


def record(components: str) -> Version:
    """Return a version with a state of users, which are a record of Java."""
    return version(
        "value", "TypeInformation.of(User.class)", of=(f"record User({components}) {{}}",)
    )


def _records() -> Iterator[Pair]:
    old, pojo = record("long id, String name"), user("long id; String name")
    yield Pair("record unchanged", old, record("long id, String name "), SAME)
    yield Pair("record component added", old, record("long id, String name, int age"), CONVERTS)
    yield Pair("record component removed", old, record("long id"), LOST)
    yield Pair("record components reordered", old, record("String name, long id"), SAME)
    yield Pair("record component widened", record("int id"), record("long id"), UNFIT)
    yield Pair("pojo to record", pojo, old, SAME)
    yield Pair("record to pojo", old, pojo, SAME)
    yield Pair("pojo to record with more", pojo, record("long id, String name, int age"), CONVERTS)
    kryo = version("value", "Types.GENERIC(User.class)", of=("User: long id; String name",))
    yield Pair("record to kryo", old, kryo, UNFIT)
    yield Pair("kryo to record", kryo, old, UNFIT)
    number, text = {"name": "id", "type": "long"}, {"name": "name", "type": "string"}
    yield Pair("record to avro", old, avro(number, text), UNFIT)
    yield Pair("avro to record", avro(number, text), old, UNFIT)


def _generics() -> Iterator[Pair]:
    box = "class Box<T> { public T item; public String name; }"
    hint = "TypeInformation.of(new TypeHint<Box<{}>>() {{}})"
    longs, texts = (version("value", hint.format(each), of=(box,)) for each in ("Long", "String"))
    more = replace(
        longs,
        classes=longs.classes.replace("public String name;", "public String name; public int age;"),
    )
    yield Pair("generic argument changed", longs, texts, UNFIT)
    yield Pair("generic pojo field added", longs, more, CONVERTS)


def _subclasses() -> Iterator[Pair]:
    config = (
        "((org.apache.flink.api.common.serialization.SerializerConfigImpl)"
        " job.env().getConfig().getSerializerConfig()).registerPojoType({}.class);"
    )
    types = (
        "User: long id",
        "class Admin extends User { public int level; }",
        "class Guest extends User { public int days; }",
    )

    def registered(*names: str) -> Version:
        plain = version("value", USER, of=types)
        lines = "".join(f"        {config.format(name)}\n" for name in names)
        return replace(plain, body=lines + plain.body)

    yield Pair("subclass registered", registered(), registered("Admin"), SAME)
    yield Pair("subclass registered too", registered("Admin"), registered("Admin", "Guest"), SAME)
    yield Pair(
        "subclasses in another order",
        registered("Admin", "Guest"),
        registered("Guest", "Admin"),
        CONVERTS,
    )
    yield Pair("subclass no longer registered", registered("Admin"), registered("Guest"), UNKNOWN)


def _enums() -> Iterator[Pair]:
    changes = {
        "unchanged": ("RED, GREEN", "RED, GREEN", SAME),
        "constant appended": ("RED, GREEN", "RED, GREEN, BLUE", CONVERTS),
        "constant inserted": ("RED, GREEN", "BLUE, RED, GREEN", CONVERTS),
        "constants reordered": ("RED, GREEN", "GREEN, RED", CONVERTS),
        "constant removed": ("RED, GREEN", "RED", UNFIT),
        "constant renamed": ("RED, GREEN", "RED, LIME", UNFIT),
    }
    for name, (before, after, verdict) in changes.items():
        old, new = (f"enum Color {{ {each} }}" for each in (before, after))
        alone = (version("value", COLOR, of=(each,)) for each in (old, new))
        yield of_both(f"enum {name}", alone, verdict)
        inside = (user("long id; Color color", each) for each in (old, new))
        yield of_both(f"enum in a pojo {name}", inside, verdict)


_TYPES = {
    "long unchanged": (LONG, LONG, SAME),
    "int to long": ("Types.INT", LONG, UNFIT),
    "long to int": (LONG, "Types.INT", UNFIT),
    "float to double": ("Types.FLOAT", "Types.DOUBLE", UNFIT),
    "string to bytes": (STRING, "Types.PRIMITIVE_ARRAY(Types.BYTE)", UNFIT),
    "decimal to string": ("Types.BIG_DEC", STRING, UNFIT),
    "tuple unchanged": (f"Types.TUPLE({LONG}, {STRING})",) * 2 + (SAME,),
    "tuple field added": (
        f"Types.TUPLE({LONG}, {STRING})",
        f"Types.TUPLE({LONG}, {STRING}, {LONG})",
        UNFIT,
    ),
    "tuple field widened": (
        f"Types.TUPLE(Types.INT, {STRING})",
        f"Types.TUPLE({LONG}, {STRING})",
        UNFIT,
    ),
    "tuple fields reordered": (
        f"Types.TUPLE({LONG}, {STRING})",
        f"Types.TUPLE({STRING}, {LONG})",
        UNFIT,
    ),
    "tuple to either": (
        f"Types.TUPLE({LONG}, {STRING})",
        f"Types.EITHER({LONG}, {STRING})",
        UNFIT,
    ),
    "tuple to map": (
        f"Types.TUPLE({STRING}, {LONG})",
        f"Types.MAP({STRING}, {LONG})",
        UNFIT,
    ),
    "tuple to row": (f"Types.TUPLE({LONG}, {STRING})", f"Types.ROW({LONG}, {STRING})", UNFIT),
    "row unchanged": (f"Types.ROW({LONG}, {STRING})",) * 2 + (SAME,),
    "row field added": (
        f"Types.ROW({LONG}, {STRING})",
        f"Types.ROW({LONG}, {STRING}, {LONG})",
        UNFIT,
    ),
    "row field widened": (
        f"Types.ROW(Types.INT, {STRING})",
        f"Types.ROW({LONG}, {STRING})",
        UNFIT,
    ),
    "list unchanged": (f"Types.LIST({LONG})",) * 2 + (SAME,),
    "list element widened": ("Types.LIST(Types.INT)", f"Types.LIST({LONG})", UNFIT),
    "list to set": (f"Types.LIST({LONG})", f"Types.SET({LONG})", UNFIT),
    "map value widened": (
        f"Types.MAP({STRING}, Types.INT)",
        f"Types.MAP({STRING}, {LONG})",
        UNFIT,
    ),
    "either side widened": (
        f"Types.EITHER({STRING}, Types.INT)",
        f"Types.EITHER({STRING}, {LONG})",
        UNFIT,
    ),
    "array unchanged": (f"Types.OBJECT_ARRAY(Types.TUPLE({LONG}, {STRING}))",) * 2 + (SAME,),
    "array of another class": (
        f"Types.OBJECT_ARRAY(Types.TUPLE({LONG}, {STRING}))",
        f"Types.OBJECT_ARRAY(Types.ROW({LONG}, {STRING}))",
        UNFIT,
    ),
}
"""Pairs that only replace the type of a state's values."""


def _types() -> Iterator[Pair]:
    for name, (old, new, verdict) in _TYPES.items():
        yield Pair(name, version("value", old), version("value", new), verdict)
    for name, form in (
        ("list", "Types.LIST({})"),
        ("array", "Types.OBJECT_ARRAY({})"),
        ("tuple", "Types.TUPLE(Types.LONG, {})"),
        ("row", "Types.ROW(Types.LONG, {})"),
        ("either", "Types.EITHER(Types.LONG, {})"),
    ):
        before, after = (
            version("value", form.format(USER), of=(f"User: {fields}",))
            for fields in ("long id", "long id; String name")
        )
        yield Pair(f"pojo field added in a {name}", before, after, CONVERTS)
    inner = "Types.LIST(Types.ENUM(Color.class))"
    before, after = (
        version("value", inner, of=(f"enum Color {{ {each} }}",))
        for each in ("RED, GREEN", "GREEN, RED")
    )
    yield Pair("enum reordered in a list", before, after, CONVERTS)


def _map_keys() -> Iterator[Pair]:
    old = version("map", LONG, LONG)
    yield Pair("map key of another type", old, version("map", STRING, LONG), UNFIT)
    before, after = (f"enum Color {{ {each} }}" for each in ("RED, GREEN", "GREEN, RED"))
    reordered = version("map", COLOR, LONG, of=(after,))
    yield Pair(
        "map key enum reordered", version("map", COLOR, LONG, of=(before,)), reordered, CONVERTS
    )
    hashed = (
        version("map", USER, LONG, of=(f"class User {{ {fields} {BY_ID} }}",))
        for fields in ("public long id;", "public long id; public String name;")
    )
    yield of_both("map key pojo field added", hashed, UNKNOWN)


def _kryo() -> Iterator[Pair]:
    uuid = version("value", "Types.GENERIC(UUID.class)")
    yield Pair("kryo of a class of java", uuid, replace(uuid, body=uuid.body + " "), SAME)
    kryo = version("value", "Types.GENERIC(User.class)", of=("User: long id",))
    yield Pair("kryo of a class of the job", kryo, replace(kryo, body=kryo.body + " "), UNKNOWN)
    yield Pair("pojo to kryo", user("long id"), kryo, UNFIT)
    yield Pair("kryo to pojo", kryo, user("long id"), UNFIT)
    other = version("value", "Types.GENERIC(Other.class)", of=("Other: long id",))
    yield Pair("kryo of another class", kryo, other, UNFIT)
    yield Pair("kryo to row", kryo, version("value", f"Types.ROW({LONG})"), UNFIT)
    register = (
        "((org.apache.flink.api.common.serialization.SerializerConfigImpl)"
        " job.env().getConfig().getSerializerConfig()).registerKryoType({}.class);"
    )

    def registered(*names: str) -> Version:
        lines = "".join(f"        {register.format(name)}\n" for name in names)
        types = ("A: long id", "B: long id")
        return replace(uuid, body=lines + uuid.body, classes=classes(*types))

    yield Pair("kryo registered too", registered("A"), registered("A", "B"), CONVERTS)
    yield Pair(
        "kryo registered in another order", registered("A", "B"), registered("B", "A"), CONVERTS
    )


Fields = tuple[Mapping[str, Any], ...]
AVRO = "org.apache.flink.avro.shaded.org.apache.avro"
FORMATS = "org.apache.flink.formats.avro.typeutils"


MADE = {"int": "(int) n", "long": "n", "string": '"text " + n'}
SYMBOL = "new {0}.generic.GenericData.EnumSymbol({1}, {1}.getEnumSymbols().get((int) n % 2))"


def avro(*fields: Mapping[str, Any], name: str = "User", generic: bool = False) -> Version:
    """Return a version with a state of records of Avro, specific or generic ones."""
    document = {"type": "record", "name": name, "namespace": "job.V$", "fields": fields}
    schema = json.dumps(json.dumps(document))
    puts, public, cases = [], [], []
    for number, field in enumerate(fields):
        kind = field["type"][-1] if isinstance(field["type"], list) else field["type"]
        own = f'{name}.SCHEMA$.getField("{field["name"]}").schema()'
        value = SYMBOL.format(AVRO, own) if isinstance(kind, dict) else MADE[kind]
        puts.append(f"record.put({number}, {value});")
        public.append(f"public Object {field['name']};")
        cases.append(f"case {number}: return {field['name']};")
    sets = " ".join(
        f"if (i == {number}) {field['name']} = value;" for number, field in enumerate(fields)
    )
    record = (
        f"new {AVRO}.generic.GenericData.Record({name}.SCHEMA$)" if generic else f"new {name}()"
    )
    helper = f"""    public static class {name} extends {AVRO}.specific.SpecificRecordBase {{
        public static final {AVRO}.Schema SCHEMA$ = new {AVRO}.Schema.Parser().parse({schema});
        {" ".join(public)}
        public {AVRO}.Schema getSchema() {{ return SCHEMA$; }}
        public Object get(int i) {{ switch (i) {{ {" ".join(cases)} default: return null; }} }}
        public void put(int i, Object value) {{ {sets} }}
    }}
    static Object record(long n) {{
        {AVRO}.generic.IndexedRecord record = {record};
        {" ".join(puts)}
        return record;
    }}"""
    info = (
        f"new {FORMATS}.GenericRecordAvroTypeInfo({name}.SCHEMA$)"
        if generic
        else f"new {FORMATS}.AvroTypeInfo<>({name}.class)"
    )
    return Version(job(state("value", info, more=".of(n -> record(n))")), helper)


def _avro() -> Iterator[Pair]:
    number, text = {"name": "id", "type": "int"}, {"name": "name", "type": "string"}
    wide, documented = {**number, "type": "long"}, {**number, "doc": "a number"}
    nullable = {**text, "type": ["null", "string"]}
    age: dict[str, Any] = {"name": "age", "type": "int"}
    title = {"name": "title", "type": "string"}
    letters, more, other, fewer = (
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": list(symbols)}}
        for symbols in ("AB", "ABC", "BA", "BC")
    )
    both = (number, text)
    changes: dict[str, tuple[Fields, Fields, str]] = {
        "unchanged": (both, (documented, text), SAME),
        "field with default added": (both, (*both, {**age, "default": 7}), CONVERTS),
        "field without default added": (both, (*both, age), UNFIT),
        "field removed": (both, (number,), LOST),
        "field renamed": (both, (number, {**title, "default": ""}), LOST),
        "field widened": (both, (wide, text), CONVERTS),
        "field narrowed": ((wide, text), both, UNFIT),
        "fields reordered": (both, (text, number), CONVERTS),
        "field made nullable": (both, (number, nullable), CONVERTS),
        "nullable field made required": ((number, nullable), both, UNFIT),
        "symbol added": ((letters,), (more,), CONVERTS),
        "symbols reordered": ((letters,), (other,), CONVERTS),
        "symbol removed": ((letters,), (fewer,), UNFIT),
    }
    for name, (old, new, verdict) in changes.items():
        yield Pair(f"avro {name}", avro(*old), avro(*new), verdict)
    for name in ("unchanged", "field with default added", "field widened", "fields reordered"):
        old, new, verdict = changes[name]
        verdict = UNFIT if name.startswith("fields r") or "default" in name else verdict
        versions = (avro(*fields, generic=True) for fields in (old, new))
        yield of_both(f"generic avro {name}", versions, verdict)
    plain = avro(*both)
    yield Pair("pojo to avro", user("int id; String name"), plain, UNFIT)
    yield Pair("avro to pojo", plain, user("int id; String name"), UNFIT)
    kryo = version("value", "Types.GENERIC(User.class)", of=("User: int id; String name",))
    yield Pair("avro to kryo", plain, kryo, UNFIT)
    yield Pair("avro to row", plain, version("value", f"Types.ROW(Types.INT, {STRING})"), UNFIT)


def _ttl() -> Iterator[Pair]:
    for kind in ("value", "list", "map", "reducing"):
        types = (STRING, LONG) if kind == "map" else (LONG,)
        without, with_ttl = version(kind, *types), version(kind, *types, more=".ttl()")
        yield Pair(f"ttl added to a {kind} state", without, with_ttl, CONVERTS)
        yield Pair(f"ttl removed from a {kind} state", with_ttl, without, CONVERTS)
    old, new = (user(fields, more=".ttl()") for fields in ("long id", "long id; String name"))
    yield Pair("pojo field added with ttl", old, new, CONVERTS)
    yield Pair("ttl and pojo field added", user("long id"), new, CONVERTS)
    yield Pair(
        "ttl added and type changed",
        version("value", "Types.INT"),
        version("value", LONG, more=".ttl()"),
        UNFIT,
    )


def _kinds() -> Iterator[Pair]:
    value = version("value", LONG)
    yield Pair("value to reducing", value, version("reducing", LONG), UNFIT)
    yield Pair("value to list", value, version("list", LONG), UNFIT)
    yield Pair("list to map", version("list", LONG), version("map", LONG, LONG), UNFIT)
    yield Pair(
        "value of a list to list",
        version("value", f"Types.LIST({LONG})"),
        version("list", LONG),
        UNFIT,
    )
    window = replace(value, body=value.body.replace("keyed(", "windowed("))
    yield Pair("namespace changed", value, window, UNFIT)


def keys(key: str, of: tuple[str, ...] = ()) -> Version:
    """Return a version with keys of a type."""
    return Version(job(state("value", LONG), key=key), classes(*of))


def _keys() -> Iterator[Pair]:
    old = keys(LONG)
    yield Pair("key to string", old, keys(STRING), UNFIT)
    yield Pair("key narrowed", old, keys("Types.INT"), UNFIT)
    pair = f"Types.TUPLE({LONG}, {STRING})"
    yield Pair("key tuple unchanged", keys(pair), keys(pair + " "), SAME)
    yield Pair("key field added", keys(pair), keys(f"Types.TUPLE({LONG}, {STRING}, {LONG})"), UNFIT)
    plain = f"class User {{ public long id; {BY_ID} }}"
    more = f"class User {{ public long id; public String name; {BY_ID} }}"
    yield Pair("key pojo unchanged", keys(USER, (plain,)), keys(USER, (plain + " ",)), SAME)
    yield Pair("key pojo field added", keys(USER, (plain,)), keys(USER, (more,)), UNFIT)
    timed = replace(old, body=old.body.replace("keyed(", "timed("))
    yield Pair("timers unchanged", timed, replace(timed, body=timed.body + " "), SAME)
    yield Pair("timers added", old, timed, EMPTY)
    yield Pair("timers removed", timed, old, LOST)


def parts(*states: str, of: tuple[str, ...] = ()) -> Version:
    """Return a version with operator states."""
    return Version(f'        job.parts("parts", {", ".join(states)});', classes(*of))


def _operator_states() -> Iterator[Pair]:
    split = parts(state("list", LONG))
    yield Pair("split state unchanged", split, replace(split, body=split.body + " "), SAME)
    yield Pair("split state of another type", split, parts(state("list", STRING)), UNFIT)
    yield Pair("split to union", split, parts(state("union", LONG)), UNFIT)
    yield Pair("split to broadcast", split, parts(state("map", LONG, LONG)), LOST)
    for kind, types in (("list", ()), ("map", (STRING,))):
        old, new = (
            parts(state(kind, *types, USER), of=(f"User: {fields}",))
            for fields in ("long id", "long id; String name")
        )
        name = "split" if kind == "list" else "broadcast"
        yield Pair(f"pojo field added in a {name} state", old, new, CONVERTS)
    yield Pair(
        "broadcast key of another type",
        parts(state("map", LONG, LONG)),
        parts(state("map", STRING, LONG)),
        UNFIT,
    )


def _operators() -> Iterator[Pair]:
    value = state("value", LONG)
    old = Version(job(value))
    yield Pair("uid changed", old, Version(job(value, uid='"other"')), LOST)
    two = Version(job(value) + "\n" + job(value, uid='"two"'))
    yield Pair("operator added", old, two, EMPTY)
    yield Pair("operator removed", two, old, LOST)
    inserted = Version("        job.inserted();\n" + job(value))
    yield Pair("stateless operator inserted before", old, inserted, SAME)
    no_uid = Version(job(value, uid="null"))
    moved = Version("        job.inserted();\n" + no_uid.body)
    yield Pair("operator inserted before one without uid", no_uid, moved, LOST)
    yield Pair(
        "operator without uid unchanged", no_uid, replace(no_uid, body=no_uid.body + " "), SAME
    )
    yield Pair("state renamed", old, Version(job(state("value", LONG, name="other"))), LOST)
    both = Version(job(value, state("value", STRING, name="other")))
    yield Pair("state added", old, both, EMPTY)
    yield Pair("state removed", both, old, LOST)
    chain = Version(old.body.rstrip(";") + ".disableChaining();")
    yield Pair("chain broken", old, chain, SAME)
    larger = replace(old, words={"max": "256"})
    yield Pair("max parallelism raised", old, larger, UNFIT)
    yield Pair(
        "max parallelism left to Flink", larger, replace(old, words={"max": "derived"}), UNKNOWN
    )


def _versions() -> Iterator[Pair]:
    """Yield pairs whose old version runs with Flink 1."""

    def older(new: Version) -> Version:
        return replace(new, flink="1.20.3")

    cart = "class User { public long id; public List<String> items; }"
    sample = (
        ".of(n -> { User u = new User(); u.id = n;"
        ' u.items = new ArrayList<>(List.of("a" + n)); return u; })'
    )
    listed = version("value", USER, of=(cart,), more=sample)
    uuid = version("value", "Types.GENERIC(UUID.class)")
    pairs = {
        "pojo": (user("long id"), user("long id"), SAME),
        "pojo field added": (user("long id"), user("long id; String name"), CONVERTS),
        "pojo with a list": (listed, listed, UNFIT),
        "kryo": (uuid, uuid, UNFIT),
        "ttl added": (version("value", LONG), version("value", LONG, more=".ttl()"), CONVERTS),
        "row and tuple": (
            version("value", f"Types.ROW({LONG}, Types.TUPLE({LONG}, {STRING}))"),
            version("value", f"Types.ROW({LONG}, Types.TUPLE({LONG}, {STRING}))"),
            SAME,
        ),
        "timers": (
            Version(job(state("list", LONG), add="timed")),
            Version(job(state("list", LONG), add="timed")),
            SAME,
        ),
    }
    for name, (old, new, verdict) in pairs.items():
        yield Pair(f"Flink 1 to 2, {name}", older(old), new, verdict)
    without, with_ttl = version("value", LONG), version("value", LONG, more=".ttl()")
    yield Pair("ttl added in Flink 1", older(without), older(with_ttl), UNFIT)
    yield Pair("ttl removed in Flink 1", older(with_ttl), older(without), UNFIT)
    yield Pair("Flink 2 to 1", without, older(without), UNFIT)


PAIRS = tuple(
    pair
    for family in (
        *(_pojos, _records, _generics, _subclasses, _enums, _types, _map_keys, _kryo, _avro, _ttl),
        *(_kinds, _keys, _operator_states, _operators, _versions),
    )
    for pair in family()
)
