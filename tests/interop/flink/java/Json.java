package golden;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.ttl.TtlValue;
import org.apache.flink.streaming.api.windowing.windows.GlobalWindow;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;

/** Values as JSON, without loss; times are numbers, so that nothing has to be parsed. */
public class Json {
    private Json() {}

    /** The text of a value. */
    public static String of(Object value) {
        if (value == null || value instanceof VoidNamespace) {
            return "null";
        } else if (value instanceof Float || value instanceof Double) {
            String text = value.toString();
            return Double.isFinite(((Number) value).doubleValue()) ? text : quoted(text);
        } else if (value instanceof BigDecimal || value instanceof BigInteger) {
            return quoted(value.toString());
        } else if (value instanceof Number || value instanceof Boolean) {
            return value.toString();
        } else if (value instanceof CharSequence
                || value instanceof Character
                || value instanceof Enum) {
            return quoted(value instanceof Enum ? ((Enum<?>) value).name() : value.toString());
        }
        String time = time(value);
        return time != null ? time : composite(value);
    }

    /** An object of names and texts that are JSON already. */
    public static String object(Object... pairs) {
        List<String> fields = new ArrayList<>();
        for (int at = 0; at < pairs.length; at += 2) {
            fields.add(quoted((String) pairs[at]) + ":" + pairs[at + 1]);
        }
        return "{" + String.join(",", fields) + "}";
    }

    /** Bytes as hexadecimal digits. */
    public static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(String.format("%02x", one));
        }
        return text.toString();
    }

    private static String time(Object value) {
        if (value instanceof LocalDate) {
            return Long.toString(((LocalDate) value).toEpochDay());
        } else if (value instanceof LocalTime) {
            return Long.toString(((LocalTime) value).toNanoOfDay());
        } else if (value instanceof LocalDateTime) {
            LocalDateTime one = (LocalDateTime) value;
            return "[" + one.toLocalDate().toEpochDay() + "," + one.toLocalTime().toNanoOfDay() + "]";
        } else if (value instanceof Instant) {
            return "[" + ((Instant) value).getEpochSecond() + "," + ((Instant) value).getNano() + "]";
        } else if (value instanceof java.sql.Timestamp) {
            java.sql.Timestamp one = (java.sql.Timestamp) value;
            return "[" + one.getTime() + "," + one.getNanos() + "]";
        } else if (value instanceof java.util.Date) {
            return Long.toString(((java.util.Date) value).getTime());
        } else if (value instanceof TimeWindow) {
            return "[" + ((TimeWindow) value).getStart() + "," + ((TimeWindow) value).getEnd() + "]";
        } else if (value instanceof GlobalWindow) {
            return quoted("global");
        }
        return null;
    }

    private static String composite(Object value) {
        if (value instanceof byte[]) {
            return quoted(hex((byte[]) value));
        } else if (value.getClass().isArray()) {
            List<Object> items = new ArrayList<>();
            for (int at = 0; at < Array.getLength(value); at++) {
                items.add(Array.get(value, at));
            }
            return array(items, false);
        } else if (value instanceof Collection) {
            return array((Collection<?>) value, value instanceof Set);
        } else if (value instanceof Map) {
            List<Object> items = new ArrayList<>();
            ((Map<?, ?>) value).forEach((key, one) -> items.add(new Object[] {key, one}));
            return array(items, true);
        } else if (value instanceof Tuple) {
            Tuple tuple = (Tuple) value;
            List<Object> items = new ArrayList<>();
            for (int at = 0; at < tuple.getArity(); at++) {
                items.add(tuple.getField(at));
            }
            return array(items, false);
        } else if (value instanceof Row) {
            return row((Row) value);
        } else if (value instanceof TtlValue) {
            TtlValue<?> timed = (TtlValue<?>) value;
            return object(
                    "time", of(timed.getLastAccessTimestamp()), "value", of(timed.getUserValue()));
        } else if (value instanceof Either) {
            Either<?, ?> either = (Either<?, ?>) value;
            return either.isLeft()
                    ? object("left", of(either.left()))
                    : object("right", of(either.right()));
        } else if (value instanceof Shapes.Person
                || value instanceof Shapes.Place
                || value.getClass().getEnclosingClass() == Boot.class
                || value.getClass().getName().startsWith("job.")
                || value instanceof DrawnTypes.Item) {
            return pojo(value);
        }
        return object("kryo", quoted(value.getClass().getName()), "text", quoted(value.toString()));
    }

    private static String row(Row row) {
        List<Object> items = new ArrayList<>();
        Set<String> names = row.getFieldNames(true);
        if (names == null) {
            for (int at = 0; at < row.getArity(); at++) {
                items.add(row.getField(at));
            }
        } else {
            names.forEach(name -> items.add(row.getField(name)));
        }
        return object("row", array(items, false), "kind", quoted(row.getKind().name()));
    }

    private static String pojo(Object value) {
        TreeMap<String, String> fields = new TreeMap<>();
        boolean isRecord = value.getClass().isRecord();
        for (Field field :
                isRecord ? value.getClass().getDeclaredFields() : value.getClass().getFields()) {
            if (!Modifier.isStatic(field.getModifiers())) {
                try {
                    field.setAccessible(true);
                    fields.put(field.getName(), of(field.get(value)));
                } catch (IllegalAccessException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
        List<Object> pairs = new ArrayList<>();
        fields.forEach((name, text) -> Collections.addAll(pairs, name, text));
        String inner = object(pairs.toArray());
        return object("class", quoted(value.getClass().getName()), "fields", inner);
    }

    private static String array(Collection<?> items, boolean sorted) {
        List<String> texts = new ArrayList<>();
        items.forEach(item -> texts.add(of(item)));
        if (sorted) {
            Collections.sort(texts);
        }
        return "[" + String.join(",", texts) + "]";
    }

    static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char one : text.toCharArray()) {
            if (one == '"' || one == '\\') {
                quoted.append('\\').append(one);
            } else if (one < ' ' || one > '~') {
                quoted.append(String.format("\\u%04x", (int) one));
            } else {
                quoted.append(one);
            }
        }
        return quoted.append('"').toString();
    }
}
