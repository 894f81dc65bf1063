package golden;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.Vector;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.java.typeutils.GenericTypeInfo;
import org.apache.flink.core.memory.DataOutputSerializer;

/** Prints values that Kryo serializes, as a line of JSON for each. */
public class KryoValues {
    private KryoValues() {}

    /** Print all values. */
    public static void main(String[] arguments) throws Exception {
        List<Object> values = values();
        TypeSerializer<Object> serializer =
                new GenericTypeInfo<>(Object.class).createSerializer(new SerializerConfigImpl());
        for (Object value : values) {
            DataOutputSerializer output = new DataOutputSerializer(64);
            serializer.serialize(value, output);
            String name = value == null ? "null" : value.getClass().getName();
            System.out.printf(
                    "{\"class\": \"%s\", \"bytes\": \"%s\"}%n",
                    name, HexFormat.of().formatHex(output.getCopyOfBuffer()));
        }
    }

    private static List<Object> values() {
        List<Object> values = new ArrayList<>();
        values.add(null);
        simple(values);
        arrays(values);
        collections(values);
        times(values);
        return values;
    }

    private static void simple(List<Object> values) {
        for (long number : new long[] {0, 1, -1, 63, 64, 300, -70000, Integer.MAX_VALUE, Integer.MIN_VALUE}) {
            values.addAll(List.of((int) number, number, (short) number, (byte) number, (char) number));
        }
        values.addAll(List.of(Long.MAX_VALUE, Long.MIN_VALUE, 1L << 55, 1L << 62));
        for (double number : new double[] {0, -0.0, 1.5, -2.25e300, Double.NaN, Double.POSITIVE_INFINITY}) {
            values.addAll(List.of(number, (float) number));
        }
        values.addAll(List.of(true, false));
        for (int length : new int[] {0, 1, 2, 31, 32, 33, 62, 63, 64, 65, 200, 9000}) {
            values.add("x".repeat(length));
            values.add("é".repeat(length));
        }
        values.addAll(List.of("東京", "🦊", "a\u0000b", "\u007f\u0080", "\u07ff\u0800\uffff"));
        values.addAll(List.of(new StringBuilder(""), new StringBuilder("text"), new StringBuilder("é")));
        values.addAll(List.of(new StringBuffer(""), new StringBuffer("text"), new StringBuffer("é")));
        for (String number : List.of("0", "1", "-1", "255", "-256", "123456789012345678901234567890")) {
            values.add(new BigInteger(number));
            values.add(new BigDecimal(number));
            values.add(new BigDecimal(number).movePointLeft(3));
            values.add(new BigDecimal(number).movePointRight(2));
        }
        values.addAll(List.of(BigInteger.ZERO, BigDecimal.ZERO, BigDecimal.ONE));
        values.addAll(List.of(new UUID(1, 2), new UUID(-1, Long.MIN_VALUE)));
        values.addAll(List.of(new AtomicLong(4), new AtomicLong(-400), new AtomicInteger(-4), new AtomicBoolean(true)));
    }

    private static void arrays(List<Object> values) {
        values.add(new byte[] {1, -2, 3});
        values.add(new short[] {1, -2, 300});
        values.add(new char[] {'a', 'é', '東'});
        values.add(new int[] {1, -2, 300_000});
        values.add(new long[] {1, -2, 300_000_000_000L});
        values.add(new float[] {1.5f, -0f});
        values.add(new double[] {1.5, Double.NaN});
        values.add(new boolean[] {true, false, true});
        values.add(new int[200]);
        values.add(new double[0]);
        values.add(new String[] {"a", null, "x".repeat(40)});
        values.add(new Object[] {1L, null, "a", 2.5, new ArrayList<>()});
        values.add(new Object[] {new ArrayList<>(List.of(1.5))});
        values.add(new Long[] {1L, null, 300L});
        values.add(new Double[] {1.5, 2.5});
    }

    private static void collections(List<Object> values) {
        String same = "same";
        List<Object> twice = new ArrayList<>(Arrays.asList(same, same, null, 2.5));
        List<List<?>> contents = new ArrayList<>();
        contents.add(List.of());
        contents.add(List.of(1L));
        contents.add(List.of(1L, 300L, -5L));
        contents.add(List.of("a", "x".repeat(40), "é"));
        contents.add(List.of(1.5, 2.5));
        contents.add(List.of(1.5, "a", 3L));
        contents.add(List.of(new BigDecimal("1.5"), new BigDecimal("2")));
        contents.add(List.of(Instant.ofEpochSecond(7), Instant.ofEpochSecond(8)));
        for (List<?> content : contents) {
            values.addAll(List.of(new ArrayList<>(content), new LinkedList<>(content), new Vector<>(content)));
            values.addAll(List.of(new ArrayDeque<>(content), new HashSet<>(content), new LinkedHashSet<>(content)));
            values.add(Arrays.asList(content.toArray()));
        }
        values.add(twice);
        values.add(new LinkedList<>(Arrays.asList(null, null)));
        values.add(new ArrayList<>(Arrays.asList(1L, null, 2L)));
        values.add(new ArrayList<>(Arrays.asList("a", null, "b", "a")));
        values.add(new ArrayList<>(Arrays.asList(null, new BigInteger("5"), null)));
        values.add(new ArrayList<>(Collections.nCopies(200, 2.5)));
        values.add(new ArrayList<>(List.of(twice, twice, new HashMap<>(Map.of(same, twice)))));
        values.add(new ArrayList<>(List.of(new ArrayList<>(List.of(1L)), new ArrayList<>(List.of("a")))));
        values.add(new ArrayList<>(List.of(new BigInteger("1"), new Date(5), new BigInteger("2"), new Date(6))));
        values.addAll(List.of(new TreeSet<>(), new TreeSet<>(Set.of(1L, 2L))));
        values.addAll(List.of(new PriorityQueue<>(List.of(2L, 1L)), new PriorityQueue<>()));
        Map<Object, Object> mixed = new LinkedHashMap<>();
        mixed.put("k", 1.5);
        mixed.put(2L, twice);
        mixed.put("n", null);
        mixed.put(same, same);
        for (Map<?, ?> map : List.of(Map.of(), Map.of("a", 1L), Map.of("a", 2.5), mixed)) {
            values.addAll(List.of(new HashMap<>(map), new LinkedHashMap<>(map)));
        }
        values.addAll(List.of(new TreeMap<>(), new TreeMap<>(Map.of("a", 2.5, "b", 3.5))));
        values.addAll(List.of(new ConcurrentHashMap<>(), new ConcurrentHashMap<>(Map.of("a", 2.5))));
        values.addAll(List.of(Collections.emptyList(), Collections.emptyMap(), Collections.emptySet()));
        values.addAll(List.of(Collections.singletonList(2.5), Collections.singleton(2.5), Collections.singletonMap(2.5, same)));
        values.addAll(List.of(Optional.empty(), Optional.of(2.5), Optional.of("x".repeat(40)), Optional.of(twice)));
    }

    private static void times(List<Object> values) {
        for (long millis : new long[] {0, 5, 1000, -1, 1_700_000_000_123L, -62_135_596_800_000L}) {
            values.add(new Date(millis));
            values.add(new java.sql.Date(millis));
            values.add(new java.sql.Time(millis));
            values.add(new java.sql.Timestamp(millis));
            values.add(Instant.ofEpochMilli(millis));
            values.add(Duration.ofMillis(millis));
        }
        java.sql.Timestamp exact = new java.sql.Timestamp(1_700_000_000_123L);
        exact.setNanos(123_456_789);
        values.add(exact);
        values.add(Instant.ofEpochSecond(-5, 999_999_999));
        values.addAll(List.of(LocalDate.of(2020, 1, 2), LocalDate.of(-5, 12, 31), LocalDate.MAX));
        for (LocalTime time : List.of(LocalTime.MIDNIGHT, LocalTime.of(5, 0), LocalTime.of(5, 6), LocalTime.of(5, 6, 7), LocalTime.MAX)) {
            values.add(time);
            values.add(LocalDateTime.of(LocalDate.of(2020, 1, 2), time));
        }
    }
}
