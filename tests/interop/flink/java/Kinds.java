package golden;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.state.AggregatingStateDescriptor;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ReducingStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.StateTtlConfig;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.BasicArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.runtime.state.StateInitializationContext;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.VoidNamespaceSerializer;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** An operator with states of every kind, timers, and a list of its own. */
public class Kinds extends States<String, VoidNamespace> {
    private final boolean dumps;
    private transient ListState<Long> seen;

    public Kinds(boolean dumps) {
        super("kinds", "user-timers", dumps);
        this.dumps = dumps;
    }

    @Override
    TypeSerializer<VoidNamespace> namespaces() {
        return VoidNamespaceSerializer.INSTANCE;
    }

    @Override
    public void initializeState(StateInitializationContext context) throws Exception {
        super.initializeState(context);
        seen =
                context.getOperatorStateStore()
                        .getListState(new ListStateDescriptor<>("seen", Types.LONG));
        if (dumps) {
            List<Long> found = new ArrayList<>();
            seen.get().forEach(found::add);
            Parts.line(this, "kinds", "seen", "split", found);
        }
    }

    @Override
    void process(Event event) throws Exception {
        fill(VoidNamespace.INSTANCE, event);
        if (event.number % 5 == 0) {
            timers.registerEventTimeTimer(VoidNamespace.INSTANCE, event.time + 86_400_000L);
            timers.registerEventTimeTimer(VoidNamespace.INSTANCE, -event.time);
        }
        if (event.number % 7 == 0) {
            long far = 7_000_000_000_000L + event.number;
            timers.registerProcessingTimeTimer(VoidNamespace.INSTANCE, far);
        }
        if (event.number % 10 == 0) {
            seen.add(event.number);
        }
    }

    @Override
    List<Kind> kinds() {
        List<Kind> kinds = new ArrayList<>();
        scalars(kinds);
        times(kinds);
        composites(kinds);
        collections(kinds);
        expiring(kinds);
        return kinds;
    }

    private static void scalars(List<Kind> kinds) {
        value(kinds, "long", Types.LONG, e -> e.id * e.small);
        value(kinds, "string", Types.STRING, e -> e.text);
        value(kinds, "boolean", Types.BOOLEAN, e -> e.small > 0);
        value(kinds, "int", Types.INT, e -> e.small * 500_000_000);
        value(kinds, "short", Types.SHORT, e -> (short) (e.small * 8000));
        value(kinds, "byte", Types.BYTE, e -> (byte) (e.small * 31));
        value(kinds, "char", Types.CHAR, e -> e.small > 1 ? '\ud800' : (char) ('x' + e.small));
        value(kinds, "double", Types.DOUBLE, Kinds::real);
        value(kinds, "float", Types.FLOAT, e -> (float) real(e));
        value(kinds, "decimal", Types.BIG_DEC, Kinds::decimal);
        value(kinds, "integer", Types.BIG_INT, e -> BigInteger.valueOf(e.id).pow(5));
        value(kinds, "color", Types.ENUM(Shapes.Color.class), Kinds::color);
    }

    private static void times(List<Kind> kinds) {
        value(kinds, "local_date", Types.LOCAL_DATE, e -> LocalDate.ofEpochDay(e.id / 10_000));
        value(kinds, "local_time", Types.LOCAL_TIME, e -> LocalTime.ofNanoOfDay(e.time * 41 + 5));
        value(kinds, "local_date_time", Types.LOCAL_DATE_TIME, Kinds::dateTime);
        value(kinds, "instant", Types.INSTANT, e -> Instant.ofEpochSecond(e.id, e.number * 1001));
        value(kinds, "sql_date", Types.SQL_DATE, e -> new java.sql.Date(e.id * 1000));
        value(kinds, "sql_time", Types.SQL_TIME, e -> new java.sql.Time(e.number * 1000));
        value(kinds, "sql_timestamp", Types.SQL_TIMESTAMP, Kinds::timestamp);
        value(kinds, "date", TypeInformation.of(java.util.Date.class), e -> new java.util.Date(e.id));
    }

    private static void composites(List<Kind> kinds) {
        value(kinds, "person", Types.POJO(Shapes.Person.class), Kinds::person);
        value(kinds, "tuple", Types.TUPLE(Types.STRING, Types.LONG, Types.DOUBLE), Kinds::tuple);
        value(
                kinds,
                "row",
                Types.ROW_NAMED(
                        new String[] {"number", "text", "when"},
                        Types.LONG,
                        Types.STRING,
                        Types.LOCAL_DATE),
                Kinds::row);
        value(kinds, "bytes", Types.PRIMITIVE_ARRAY(Types.BYTE), e -> e.text.getBytes());
        value(
                kinds,
                "longs",
                Types.PRIMITIVE_ARRAY(Types.LONG),
                e -> new long[] {e.id, e.number, -1});
        value(
                kinds,
                "strings",
                BasicArrayTypeInfo.STRING_ARRAY_TYPE_INFO,
                e -> new String[] {e.text, null, e.name});
        value(
                kinds,
                "tuples",
                Types.OBJECT_ARRAY(Types.TUPLE(Types.STRING, Types.INT)),
                e -> new Tuple2[] {Tuple2.of(e.name, e.small)});
        value(
                kinds,
                "nested_list",
                Types.LIST(Types.MAP(Types.STRING, Types.LONG)),
                e -> List.of(new LinkedHashMap<>(Map.of(e.text, e.id)), new LinkedHashMap<>()));
        value(
                kinds,
                "nested_map",
                Types.MAP(Types.LONG, Types.LIST(Types.STRING)),
                Kinds::nested);
        value(
                kinds,
                "opaque",
                TypeInformation.of(Shapes.Opaque.class),
                e -> new Shapes.Opaque(e.text, e.small));
    }

    private static void collections(List<Kind> kinds) {
        list(kinds, "list_long", Types.LONG, e -> e.small < 1 ? e.id : null);
        list(kinds, "list_string", Types.STRING, e -> e.small > 1 ? e.text : null);
        list(kinds, "list_person", Types.POJO(Shapes.Person.class), e -> e.small == 2 ? person(e) : null);
        map(
                kinds,
                "map_string_long",
                Types.STRING,
                Types.LONG,
                e -> Tuple2.of(e.text, e.id));
        map(
                kinds,
                "map_long_string",
                Types.LONG,
                Types.STRING,
                e -> Tuple2.of(e.number, e.small > 0 ? null : e.text));
        map(
                kinds,
                "map_int_tuple",
                Types.INT,
                Types.TUPLE(Types.STRING, Types.LONG),
                e -> Tuple2.of(e.small, Tuple2.of(e.text, e.number)));
        map(
                kinds,
                "map_tuple_string",
                Types.TUPLE(Types.STRING, Types.INT),
                Types.STRING,
                e -> e.small > 2 ? Tuple2.of(Tuple2.of(e.name, e.small), e.text) : null);
        kinds.add(
                new Kind(
                        new ReducingStateDescriptor<>("reducing", Long::sum, Types.LONG),
                        e -> e.number));
        kinds.add(
                new Kind(
                        new AggregatingStateDescriptor<>(
                                "aggregating",
                                new Mean(),
                                Types.TUPLE(Types.LONG, Types.DOUBLE)),
                        e -> e));
    }

    private static void expiring(List<Kind> kinds) {
        StateTtlConfig days = StateTtlConfig.newBuilder(Duration.ofDays(36_500)).build();
        int first = kinds.size();
        value(kinds, "ttl_value", Types.STRING, e -> e.text);
        list(kinds, "ttl_list", Types.LONG, e -> e.small > 2 ? e.number : null);
        map(
                kinds,
                "ttl_map",
                Types.STRING,
                Types.LONG,
                e -> e.small > 1 ? Tuple2.of(e.text, e.number) : null);
        for (Kind kind : kinds.subList(first, kinds.size())) {
            kind.descriptor.enableTimeToLive(days);
        }
    }

    private static <T> void value(
            List<Kind> kinds, String name, TypeInformation<T> type, Function<Event, Object> of) {
        kinds.add(new Kind(new ValueStateDescriptor<>(name, type), of));
    }

    private static <T> void list(
            List<Kind> kinds, String name, TypeInformation<T> type, Function<Event, Object> of) {
        kinds.add(new Kind(new ListStateDescriptor<>(name, type), of));
    }

    private static <K, V> void map(
            List<Kind> kinds,
            String name,
            TypeInformation<K> key,
            TypeInformation<V> value,
            Function<Event, Object> of) {
        kinds.add(new Kind(new MapStateDescriptor<>(name, key, value), of));
    }

    private static double real(Event e) {
        double[] special = {Double.NaN, Double.NEGATIVE_INFINITY, -0.0, Double.MIN_VALUE};
        return e.small > 2 ? special[(int) (e.number % special.length)] : e.amount;
    }

    private static BigDecimal decimal(Event e) {
        int[] scales = {0, 2, -3, 20};
        return new BigDecimal(BigInteger.valueOf(e.id).pow(3), scales[Math.abs(e.small) % 4]);
    }

    private static Shapes.Color color(Event e) {
        return Shapes.Color.values()[Math.abs(e.small) % 3];
    }

    private static LocalDateTime dateTime(Event e) {
        return LocalDateTime.of(
                LocalDate.ofEpochDay(e.id / 10_000), LocalTime.ofNanoOfDay(e.number * 1_000_007));
    }

    private static java.sql.Timestamp timestamp(Event e) {
        java.sql.Timestamp one = new java.sql.Timestamp(e.time);
        one.setNanos((int) e.number * 1003 + 1);
        return one;
    }

    private static Shapes.Person person(Event e) {
        Shapes.Person one = e.small == -3 ? new Shapes.Worker() : new Shapes.Person();
        if (one instanceof Shapes.Worker) {
            ((Shapes.Worker) one).employer = e.text;
        }
        one.name = e.small == 0 ? null : e.name;
        one.age = e.small;
        one.score = e.small > 1 ? null : e.id;
        one.tags = e.small < 0 ? null : new ArrayList<>(Arrays.asList(e.text, e.name));
        one.marks = new LinkedHashMap<>(Map.of(e.text, e.small));
        one.place = new Shapes.Place();
        one.place.latitude = e.amount;
        return one;
    }

    private static Object tuple(Event e) {
        return Tuple3.of(e.text, e.id, e.amount);
    }

    private static Row row(Event e) {
        Row row = new Row(e.small == 3 ? RowKind.DELETE : RowKind.INSERT, 3);
        row.setField(0, e.small == 0 ? null : e.number);
        row.setField(1, e.small == 1 ? null : e.text);
        row.setField(2, LocalDate.ofEpochDay(e.number));
        return row;
    }

    private static Map<Long, List<String>> nested(Event e) {
        Map<Long, List<String>> map = new LinkedHashMap<>();
        map.put(e.id, List.of(e.text));
        map.put(e.number, e.small > 0 ? List.of() : null);
        return map;
    }

    private static class Mean
            implements AggregateFunction<Event, Tuple2<Long, Double>, Tuple2<Long, Double>> {
        @Override
        public Tuple2<Long, Double> createAccumulator() {
            return Tuple2.of(0L, 0.0);
        }

        @Override
        public Tuple2<Long, Double> add(Event event, Tuple2<Long, Double> sum) {
            return Tuple2.of(sum.f0 + 1, sum.f1 + event.amount);
        }

        @Override
        public Tuple2<Long, Double> getResult(Tuple2<Long, Double> sum) {
            return sum;
        }

        @Override
        public Tuple2<Long, Double> merge(Tuple2<Long, Double> a, Tuple2<Long, Double> b) {
            return Tuple2.of(a.f0 + b.f0, a.f1 + b.f1);
        }
    }
}
