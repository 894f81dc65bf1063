package golden;

import java.lang.reflect.Array;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;

/** Types and values in the JSON documents of drawn jobs. A composite type is an array. */
public class DrawnTypes {
    private DrawnTypes() {}

    /** The values of an enum. */
    public enum Order {
        FIRST,
        SECOND,
        THIRD
    }

    /** A POJO. */
    public static class Item {
        public int number;
        public String text;
        public Long total;
    }

    /** Return the type information for a described type. */
    static TypeInformation<?> type(JsonNode type) {
        if (type.isTextual()) {
            return scalar(type.asText());
        }
        TypeInformation<?>[] parts = new TypeInformation<?>[type.size() - 1];
        for (int at = 0; at < parts.length; at++) {
            parts[at] = type(type.get(at + 1));
        }
        switch (type.get(0).asText()) {
            case "tuple":
                return Types.TUPLE(parts);
            case "row":
                return Types.ROW(parts);
            case "list":
                return Types.LIST(parts[0]);
            case "map":
                return Types.MAP(parts[0], parts[1]);
            case "either":
                return Types.EITHER(parts[0], parts[1]);
            default:
                throw new IllegalArgumentException("no type: " + type);
        }
    }

    private static TypeInformation<?> scalar(String name) {
        switch (name) {
            case "bytes":
                return Types.PRIMITIVE_ARRAY(Types.BYTE);
            case "date":
                return TypeInformation.of(java.util.Date.class);
            case "int[]":
                return Types.PRIMITIVE_ARRAY(Types.INT);
            case "double[]":
                return Types.PRIMITIVE_ARRAY(Types.DOUBLE);
            case "boolean[]":
                return Types.PRIMITIVE_ARRAY(Types.BOOLEAN);
            case "String[]":
                return TypeInformation.of(String[].class);
            case "enum":
                return Types.ENUM(Order.class);
            case "pojo":
                return Types.POJO(Item.class);
            default:
                try {
                    return (TypeInformation<?>) Types.class.getField(name).get(null);
                } catch (ReflectiveOperationException error) {
                    throw new IllegalArgumentException("no type: " + name, error);
                }
        }
    }

    /** Return the Java value of a type. */
    static Object value(JsonNode type, JsonNode value) {
        if (value.isNull()) {
            return null;
        }
        if (type.isTextual()) {
            return scalar(type.asText(), value);
        }
        switch (type.get(0).asText()) {
            case "tuple":
                Tuple tuple = Tuple.newInstance(value.size());
                for (int at = 0; at < value.size(); at++) {
                    tuple.setField(value(type.get(at + 1), value.get(at)), at);
                }
                return tuple;
            case "row":
                Row row = new Row(value.size());
                for (int at = 0; at < value.size(); at++) {
                    row.setField(at, value(type.get(at + 1), value.get(at)));
                }
                return row;
            case "list":
                List<Object> items = new ArrayList<>();
                value.forEach(item -> items.add(value(type.get(1), item)));
                return items;
            case "map":
                Map<Object, Object> entries = new HashMap<>();
                value.forEach(
                        entry ->
                                entries.put(
                                        value(type.get(1), entry.get(0)),
                                        value(type.get(2), entry.get(1))));
                return entries;
            case "either":
                int side = value.get(0).asInt();
                Object part = value(type.get(side + 1), value.get(1));
                return side == 0 ? Either.Left(part) : Either.Right(part);
            default:
                throw new IllegalArgumentException("no type: " + type);
        }
    }

    private static Object scalar(String type, JsonNode value) {
        switch (type) {
            case "STRING":
                return value.asText();
            case "CHAR":
                return (char) value.asInt();
            case "BOOLEAN":
                return value.asBoolean();
            case "BYTE":
                return (byte) value.asInt();
            case "SHORT":
                return (short) value.asInt();
            case "INT":
                return value.asInt();
            case "LONG":
                return value.asLong();
            case "FLOAT":
                return Float.parseFloat(value.asText());
            case "DOUBLE":
                return Double.parseDouble(value.asText());
            case "BIG_DEC":
                return new BigDecimal(value.asText());
            case "BIG_INT":
                return new BigInteger(value.asText());
            case "bytes":
                return value.asText().getBytes(java.nio.charset.StandardCharsets.UTF_8);
            case "enum":
                return Order.valueOf(value.asText());
            case "pojo":
                Item item = new Item();
                item.number = value.get(0).asInt();
                item.text = value.get(1).isNull() ? null : value.get(1).asText();
                item.total = value.get(2).isNull() ? null : value.get(2).asLong();
                return item;
            default:
                return type.endsWith("[]") ? array(type, value) : time(type, value);
        }
    }

    private static Object array(String type, JsonNode value) {
        String element = type.substring(0, type.length() - 2).toUpperCase(Locale.ROOT);
        Class<?> kind = scalar(type).getTypeClass().getComponentType();
        Object array = Array.newInstance(kind, value.size());
        for (int at = 0; at < value.size(); at++) {
            Array.set(array, at, value.get(at).isNull() ? null : scalar(element, value.get(at)));
        }
        return array;
    }

    private static Object time(String type, JsonNode value) {
        switch (type) {
            case "LOCAL_DATE":
                return LocalDate.ofEpochDay(value.asLong());
            case "LOCAL_TIME":
                return LocalTime.ofNanoOfDay(value.asLong());
            case "LOCAL_DATE_TIME":
                return LocalDateTime.of(
                        LocalDate.ofEpochDay(value.get(0).asLong()),
                        LocalTime.ofNanoOfDay(value.get(1).asLong()));
            case "INSTANT":
                return Instant.ofEpochSecond(value.get(0).asLong(), value.get(1).asLong());
            case "SQL_DATE":
                return new java.sql.Date(value.asLong());
            case "SQL_TIME":
                return new java.sql.Time(value.asLong());
            case "SQL_TIMESTAMP":
                java.sql.Timestamp stamp = new java.sql.Timestamp(value.get(0).asLong());
                stamp.setNanos(value.get(1).asInt());
                return stamp;
            case "date":
                return new java.util.Date(value.asLong());
            default:
                throw new IllegalArgumentException("no type: " + type);
        }
    }
}
