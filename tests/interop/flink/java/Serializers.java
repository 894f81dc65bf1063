package golden;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Function;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.BasicArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshotSerializationUtil;
import org.apache.flink.api.common.typeutils.base.ListSerializer;
import org.apache.flink.api.common.typeutils.base.LongSerializer;
import org.apache.flink.api.common.typeutils.base.MapSerializer;
import org.apache.flink.api.common.typeutils.base.StringSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.typeutils.runtime.NullableSerializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.ArrayListSerializer;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.streaming.api.windowing.windows.GlobalWindow;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Prints, as a line of JSON for each type, the snapshot of its serializer, and values as bytes. */
public class Serializers {
    private static final int VALUES = 12;
    private static final String[] LETTERS = {
        "a", "Z", "0", " ", "é", "ß", "\u0000", "\u007f", "\u0080", "ÿ", "Ā", "東", "🦊", "\ud800", "\uffff"
    };

    private Serializers() {}

    /** Print all. */
    public static void main(String[] arguments) throws Exception {
        scalars();
        times();
        arrays();
        composites();
        internal();
        Rows.print();
    }

    private static void scalars() throws Exception {
        of("string", Types.STRING, Serializers::text);
        of("boolean", Types.BOOLEAN, Random::nextBoolean);
        of("byte", Types.BYTE, random -> (byte) random.nextInt());
        of("short", Types.SHORT, random -> (short) random.nextInt());
        of("char", Types.CHAR, random -> (char) random.nextInt());
        of("int", Types.INT, Random::nextInt);
        of("long", Types.LONG, Serializers::number);
        of("float", Types.FLOAT, random -> (float) real(random));
        of("double", Types.DOUBLE, Serializers::real);
        orNull("big_decimal", Types.BIG_DEC, Serializers::decimal);
        orNull("big_integer", Types.BIG_INT, Serializers::integer);
        of("enum", Types.ENUM(Shapes.Color.class), Serializers::color);
    }

    private static void times() throws Exception {
        orNull("local_date", Types.LOCAL_DATE, Serializers::date);
        orNull("local_time", Types.LOCAL_TIME, Serializers::time);
        orNull(
                "local_date_time",
                Types.LOCAL_DATE_TIME,
                random -> LocalDateTime.of(date(random), time(random)));
        orNull(
                "instant",
                Types.INSTANT,
                random -> Instant.ofEpochSecond(random.nextInt() * 4L, random.nextInt(1_000_000_000)));
        orNull(
                "sql_date",
                Types.SQL_DATE,
                random -> new java.sql.Date(random.nextInt() * 1000L));
        orNull(
                "sql_time",
                Types.SQL_TIME,
                random -> new java.sql.Time(random.nextInt() * 1L));
        orNull("sql_timestamp", Types.SQL_TIMESTAMP, Serializers::timestamp);
        orNull(
                "date",
                TypeInformation.of(java.util.Date.class),
                random -> new java.util.Date(random.nextInt() * 1000L));
    }

    private static void arrays() throws Exception {
        of("boolean[]", Types.PRIMITIVE_ARRAY(Types.BOOLEAN), r -> new boolean[] {r.nextBoolean()});
        of("byte[]", Types.PRIMITIVE_ARRAY(Types.BYTE), Serializers::bytes);
        of(
                "short[]",
                Types.PRIMITIVE_ARRAY(Types.SHORT),
                r -> new short[] {(short) r.nextInt(), -1});
        of("char[]", Types.PRIMITIVE_ARRAY(Types.CHAR), r -> text(r).toCharArray());
        of("int[]", Types.PRIMITIVE_ARRAY(Types.INT), r -> r.ints(r.nextInt(4)).toArray());
        of("long[]", Types.PRIMITIVE_ARRAY(Types.LONG), r -> r.longs(r.nextInt(4)).toArray());
        of(
                "float[]",
                Types.PRIMITIVE_ARRAY(Types.FLOAT),
                r -> new float[] {(float) real(r), 1.5f});
        of("double[]", Types.PRIMITIVE_ARRAY(Types.DOUBLE), r -> new double[] {real(r), -2.25});
        of(
                "string[]",
                BasicArrayTypeInfo.STRING_ARRAY_TYPE_INFO,
                r -> new String[] {text(r), null, ""});
        of(
                "Long[]",
                BasicArrayTypeInfo.LONG_ARRAY_TYPE_INFO,
                r -> new Long[] {number(r), null, number(r)});
        of(
                "tuple[]",
                Types.OBJECT_ARRAY(Types.TUPLE(Types.STRING, Types.INT)),
                r -> new Tuple2[] {Tuple2.of(text(r), r.nextInt()), null});
    }

    private static void composites() throws Exception {
        of(
                "tuple2",
                Types.TUPLE(Types.STRING, Types.LONG),
                r -> Tuple2.of(text(r), number(r)));
        of(
                "tuple3",
                Types.TUPLE(Types.INT, Types.DOUBLE, Types.TUPLE(Types.STRING, Types.BOOLEAN)),
                r -> Tuple3.of(r.nextInt(), real(r), Tuple2.of(text(r), r.nextBoolean())));
        of("row", Types.ROW(Types.LONG, Types.STRING, Types.LOCAL_DATE), Serializers::row);
        of("list", Types.LIST(Types.STRING), r -> List.of(text(r), text(r)));
        of("list_of_lists", Types.LIST(Types.LIST(Types.LONG)), r -> List.of(List.of(number(r))));
        of("map", Types.MAP(Types.STRING, Types.LONG), Serializers::map);
        of(
                "map_of_lists",
                Types.MAP(Types.INT, Types.LIST(Types.STRING)),
                r -> Map.of(r.nextInt(), List.of(text(r))));
        orNull("pojo", Types.POJO(Shapes.Person.class), Serializers::person);
        of("pojo_of_primitives", Types.POJO(Shapes.Place.class), Serializers::place);
        of(
                "either",
                Types.EITHER(Types.STRING, Types.LONG),
                r -> r.nextBoolean() ? Either.Left(text(r)) : Either.Right(number(r)));
        of(
                "kryo",
                TypeInformation.of(Shapes.Opaque.class),
                r -> new Shapes.Opaque(text(r), r.nextInt()));
    }

    private static void internal() throws Exception {
        of("time_window", new TimeWindow.Serializer(), r -> new TimeWindow(number(r), number(r)));
        of("global_window", new GlobalWindow.Serializer(), r -> GlobalWindow.get());
        of("void_namespace", VoidNamespaceSerializer.INSTANCE, r -> VoidNamespace.INSTANCE);
        of(
                "list_serializer",
                new ListSerializer<>(LongSerializer.INSTANCE),
                r -> List.of(number(r)));
        of(
                "array_list",
                new ArrayListSerializer<>(StringSerializer.INSTANCE),
                r -> new ArrayList<>(List.of(text(r), text(r))));
        of(
                "map_serializer",
                new MapSerializer<>(StringSerializer.INSTANCE, StringSerializer.INSTANCE),
                r -> Map.of(text(r), text(r)));
        of(
                "nullable",
                NullableSerializer.wrap(LongSerializer.INSTANCE, false),
                r -> r.nextBoolean() ? null : number(r));
        of(
                "nullable_padded",
                NullableSerializer.wrap(LongSerializer.INSTANCE, true),
                r -> r.nextBoolean() ? null : number(r));
    }

    @SuppressWarnings("unchecked")
    private static <T> void of(String name, TypeInformation<T> type, Function<Random, ?> value)
            throws Exception {
        of(name, type.createSerializer(new SerializerConfigImpl()), (Function<Random, T>) value);
    }

    /** Of a type that may be null: now and then it is. */
    private static void orNull(String name, TypeInformation<?> type, Function<Random, ?> value)
            throws Exception {
        of(name, type, random -> random.nextInt(6) == 0 ? null : value.apply(random));
    }

    static <T> void of(String name, TypeSerializer<T> serializer, Function<Random, T> value)
            throws Exception {
        of(name, serializer, value, Json::of);
    }

    static <T> void of(
            String name,
            TypeSerializer<T> serializer,
            Function<Random, T> value,
            Function<T, String> json)
            throws Exception {
        Random random = new Random(name.hashCode());
        List<String> values = new ArrayList<>();
        for (int at = 0; at < VALUES; at++) {
            T one = value.apply(random);
            DataOutputSerializer bytes = new DataOutputSerializer(64);
            serializer.serialize(one, bytes);
            values.add("[\"" + Json.hex(bytes.getCopyOfBuffer()) + "\"," + json.apply(one) + "]");
        }
        // After the values, since a serializer may learn of classes while it writes.
        DataOutputSerializer snapshot = new DataOutputSerializer(64);
        TypeSerializerSnapshotSerializationUtil.writeSerializerSnapshot(
                snapshot, serializer.snapshotConfiguration());
        System.out.println(
                Json.object(
                        "name", Json.of(name),
                        "length", Integer.toString(serializer.getLength()),
                        "snapshot", Json.of(snapshot.getCopyOfBuffer()),
                        "values", "[" + String.join(",", values) + "]"));
    }

    static String text(Random random) {
        StringBuilder text = new StringBuilder();
        int length = random.nextInt(10) == 0 ? 130 : random.nextInt(6);
        while (text.length() < length) {
            text.append(LETTERS[random.nextInt(LETTERS.length)]);
        }
        return text.toString();
    }

    static long number(Random random) {
        long[] special = {0, -1, Long.MAX_VALUE, Long.MIN_VALUE};
        int which = random.nextInt(8);
        return which < special.length ? special[which] : random.nextLong();
    }

    static double real(Random random) {
        double[] special = {
            Double.NaN, Double.POSITIVE_INFINITY, -0.0, Double.MIN_VALUE, Float.MAX_VALUE
        };
        int which = random.nextInt(10);
        return which < special.length ? special[which] : random.nextGaussian() * 1e6;
    }

    static BigInteger integer(Random random) {
        BigInteger[] special = {BigInteger.ZERO, BigInteger.ONE, BigInteger.TEN};
        int which = random.nextInt(8);
        if (which < special.length) {
            return special[which];
        }
        BigInteger magnitude = new BigInteger(random.nextInt(150), random);
        return random.nextBoolean() ? magnitude : magnitude.negate();
    }

    static BigDecimal decimal(Random random) {
        int[] scales = {0, 0, 2, -3, 40};
        return new BigDecimal(integer(random), scales[random.nextInt(scales.length)]);
    }

    private static Shapes.Color color(Random random) {
        return Shapes.Color.values()[random.nextInt(3)];
    }

    static LocalDate date(Random random) {
        return LocalDate.ofEpochDay(random.nextInt(2_000_000) - 1_000_000);
    }

    static LocalTime time(Random random) {
        return LocalTime.ofNanoOfDay((random.nextLong() >>> 1) % 86_400_000_000_000L);
    }

    private static java.sql.Timestamp timestamp(Random random) {
        java.sql.Timestamp one = new java.sql.Timestamp(random.nextInt() * 1000L);
        one.setNanos(random.nextInt(1_000_000_000));
        return one;
    }

    static byte[] bytes(Random random) {
        byte[] bytes = new byte[random.nextInt(9)];
        random.nextBytes(bytes);
        return bytes;
    }

    private static Row row(Random random) {
        Row row = new Row(RowKind.values()[random.nextInt(4)], 3);
        row.setField(0, random.nextBoolean() ? number(random) : null);
        row.setField(1, random.nextBoolean() ? text(random) : null);
        row.setField(2, random.nextBoolean() ? date(random) : null);
        return row;
    }

    private static Map<String, Long> map(Random random) {
        Map<String, Long> map = new LinkedHashMap<>();
        for (int left = random.nextInt(4); left > 0; left--) {
            map.put(text(random), random.nextBoolean() ? null : number(random));
        }
        return map;
    }

    private static Shapes.Place place(Random random) {
        Shapes.Place place = new Shapes.Place();
        place.latitude = real(random);
        place.longitude = real(random);
        return place;
    }

    private static Shapes.Person person(Random random) {
        Shapes.Person one = random.nextInt(4) == 0 ? new Shapes.Worker() : new Shapes.Person();
        if (one instanceof Shapes.Worker) {
            ((Shapes.Worker) one).employer = text(random);
        }
        one.name = random.nextBoolean() ? text(random) : null;
        one.age = random.nextInt();
        one.score = random.nextBoolean() ? number(random) : null;
        one.tags = random.nextBoolean() ? List.of(text(random)) : null;
        one.marks = random.nextBoolean() ? Map.of(text(random), random.nextInt()) : null;
        one.place = random.nextBoolean() ? place(random) : null;
        return one;
    }
}
