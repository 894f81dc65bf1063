package golden;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamElement;
import org.apache.flink.streaming.runtime.streamrecord.StreamElementSerializer;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.catalog.ObjectIdentifier;
import org.apache.flink.table.data.ArrayData;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericArrayData;
import org.apache.flink.table.data.GenericMapData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.MapData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalSerializers;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.BinaryType;
import org.apache.flink.table.types.logical.BooleanType;
import org.apache.flink.table.types.logical.CharType;
import org.apache.flink.table.types.logical.DateType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.FloatType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LocalZonedTimestampType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.MapType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.SmallIntType;
import org.apache.flink.table.types.logical.StructuredType;
import org.apache.flink.table.types.logical.TimeType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.TinyIntType;
import org.apache.flink.table.types.logical.VarBinaryType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.table.types.logical.utils.LogicalTypeChecks;
import org.apache.flink.types.RowKind;

/** What SQL's operators keep: values of the logical types, as one row, and each in a row. */
public class Rows {
    private static final LogicalType[] TYPES = {
        new BooleanType(),
        new TinyIntType(),
        new SmallIntType(),
        new IntType(),
        new BigIntType(),
        new FloatType(),
        new DoubleType(),
        new VarCharType(VarCharType.MAX_LENGTH),
        new VarCharType(20),
        new CharType(3),
        new VarBinaryType(VarBinaryType.MAX_LENGTH),
        new BinaryType(4),
        new DecimalType(10, 2),
        new DecimalType(38, 10),
        new DateType(),
        new TimeType(3),
        new TimestampType(3),
        new TimestampType(9),
        new LocalZonedTimestampType(3),
        new LocalZonedTimestampType(6),
        new ArrayType(new IntType()),
        new ArrayType(new VarCharType(VarCharType.MAX_LENGTH)),
        new MapType(new VarCharType(VarCharType.MAX_LENGTH), new BigIntType()),
        RowType.of(new BigIntType(), new VarCharType(VarCharType.MAX_LENGTH)),
        new BigIntType(false),
        new VarCharType(false, 5)
    };

    private Rows() {}

    static void print() throws Exception {
        for (LogicalType type : TYPES) {
            row("row_data " + type.asSerializableString(), RowType.of(type));
        }
        row("row_data of all", RowType.of(TYPES));
        String[] names = {"id", "näme", "at"};
        LogicalType[] three = {
            new BigIntType(false), new VarCharType(VarCharType.MAX_LENGTH), new TimestampType(3)
        };
        row("row_data of names", RowType.of(three, names));
    }

    /** Types of user functions: structured ones, and values outside of rows. */
    public static void main(String[] arguments) throws Exception {
        LogicalType text = new VarCharType(VarCharType.MAX_LENGTH);
        LogicalType local = new LocalZonedTimestampType(3);
        StructuredType base =
                StructuredType.newBuilder(ObjectIdentifier.of("a", "b", "Base"))
                        .attributes(List.of(attribute("id", new BigIntType(false))))
                        .build();
        StructuredType inner =
                StructuredType.newBuilder(ObjectIdentifier.of("a", "b", "Inner"))
                        .attributes(List.of(attribute("name", text), attribute("at", local)))
                        .superType(base)
                        .build();
        StructuredType outer =
                StructuredType.newBuilder(ObjectIdentifier.of("a", "b", "Outer"))
                        .attributes(
                                List.of(
                                        attribute("inner", inner),
                                        attribute("list", new ArrayType(inner))))
                        .build();
        row("row_data of structured types", RowType.of(new IntType(), inner, outer));
        row("row_data of nested instants", RowType.of(RowType.of(local, new ArrayType(local))));
        LogicalType[] elements = {
            new TinyIntType(), new BigIntType(), text, inner, local, new ArrayType(new IntType()),
            new DecimalType(38, 10), new LocalZonedTimestampType(9)
        };
        for (LogicalType element : elements) {
            outsideOfRow(new ArrayType(element));
            outsideOfRow(new MapType(new IntType(false), element));
        }
        outsideOfRow(new MapType(text.copy(false), new BigIntType()));
        for (int digits : new int[] {10, 18, 19, 38}) {
            outsideOfRow(new DecimalType(digits, digits / 2));
        }
        for (int digits : new int[] {0, 3, 6, 9}) {
            outsideOfRow(new TimestampType(digits));
            outsideOfRow(new LocalZonedTimestampType(digits));
        }
        Serializers.of(
                "stream elements",
                new StreamElementSerializer<>(
                        InternalSerializers.<RowData>create(RowType.of(new BigIntType(), local))),
                Rows::element,
                Rows::elementJson);
    }

    private static StructuredType.StructuredAttribute attribute(String name, LogicalType type) {
        return new StructuredType.StructuredAttribute(name, type);
    }

    private static void outsideOfRow(LogicalType type) throws Exception {
        Serializers.of(
                type.asSummaryString(),
                InternalSerializers.create(type),
                random -> value(type, random),
                value -> json(type, value));
    }

    private static StreamElement element(Random random) {
        LogicalType type = RowType.of(new BigIntType(), new LocalZonedTimestampType(3));
        if (random.nextInt(4) == 0) {
            return new Watermark(random.nextLong());
        }
        RowData row = (RowData) value(type, random);
        return random.nextBoolean()
                ? new StreamRecord<>(row, random.nextLong())
                : new StreamRecord<>(row);
    }

    private static String elementJson(StreamElement element) {
        if (element.isWatermark()) {
            return Json.object(
                    "timestamp", Json.of(element.asWatermark().getTimestamp()), "value", "null");
        }
        StreamRecord<RowData> record = element.asRecord();
        LogicalType type = RowType.of(new BigIntType(), new LocalZonedTimestampType(3));
        return Json.object(
                "timestamp", record.hasTimestamp() ? Json.of(record.getTimestamp()) : "null",
                "value", json(type, record.getValue()));
    }

    private static void row(String name, RowType type) throws Exception {
        Serializers.of(
                name,
                InternalSerializers.create(type),
                random -> (RowData) value(type, random),
                value -> json(type, value));
    }

    private static Object value(LogicalType type, Random random) {
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return random.nextBoolean();
            case TINYINT:
                return (byte) random.nextInt();
            case SMALLINT:
                return (short) random.nextInt();
            case INTEGER:
            case DATE:
                return random.nextInt();
            case TIME_WITHOUT_TIME_ZONE:
                return random.nextInt(86_400_000);
            case BIGINT:
                return Serializers.number(random);
            case FLOAT:
                return (float) Serializers.real(random);
            case DOUBLE:
                return Serializers.real(random);
            case CHAR:
                return StringData.fromString("ab" + random.nextInt(10));
            case VARCHAR:
                return StringData.fromString(Serializers.text(random).replace('\ud800', '-'));
            case BINARY:
                return new byte[] {1, (byte) random.nextInt(), 3, -4};
            case VARBINARY:
                return Serializers.bytes(random);
            case DECIMAL:
                return decimal((DecimalType) type, random);
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return timestamp(((TimestampType) type).getPrecision(), random);
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return timestamp(((LocalZonedTimestampType) type).getPrecision(), random);
            default:
                return composite(type, random);
        }
    }

    private static Object composite(LogicalType type, Random random) {
        if (type instanceof ArrayType) {
            Object[] items = new Object[random.nextInt(4)];
            for (int at = 0; at < items.length; at++) {
                items[at] = orNull(((ArrayType) type).getElementType(), random);
            }
            return new GenericArrayData(items);
        } else if (type instanceof MapType) {
            Object key = value(((MapType) type).getKeyType(), random);
            return new GenericMapData(Map.of(key, value(((MapType) type).getValueType(), random)));
        }
        List<LogicalType> fields = LogicalTypeChecks.getFieldTypes(type);
        GenericRowData data = new GenericRowData(fields.size());
        data.setRowKind(RowKind.values()[random.nextInt(4)]);
        for (int at = 0; at < fields.size(); at++) {
            LogicalType field = fields.get(at);
            data.setField(at, field.isNullable() ? orNull(field, random) : value(field, random));
        }
        return data;
    }

    private static Object orNull(LogicalType type, Random random) {
        return random.nextInt(5) == 0 ? null : value(type, random);
    }

    private static DecimalData decimal(DecimalType type, Random random) {
        long unscaled = random.nextInt() * (type.getPrecision() > 18 ? 4_000_000_007L : 2L);
        java.math.BigDecimal value = java.math.BigDecimal.valueOf(unscaled, type.getScale());
        return DecimalData.fromBigDecimal(value, type.getPrecision(), type.getScale());
    }

    private static TimestampData timestamp(int precision, Random random) {
        int nanos = precision <= 3 ? 0 : precision <= 6 ? random.nextInt(1000) * 1000 : random.nextInt(1_000_000);
        return TimestampData.fromEpochMillis(random.nextInt() * 1001L, nanos);
    }

    private static String json(LogicalType type, Object value) {
        if (value instanceof StringData || value instanceof DecimalData) {
            return Json.of(value.toString());
        } else if (value instanceof TimestampData) {
            TimestampData at = (TimestampData) value;
            return "[" + at.getMillisecond() + "," + at.getNanoOfMillisecond() + "]";
        } else if (value instanceof ArrayData) {
            return array((ArrayData) value, ((ArrayType) type).getElementType());
        } else if (value instanceof MapData) {
            String keys = array(((MapData) value).keyArray(), ((MapType) type).getKeyType());
            String values = array(((MapData) value).valueArray(), ((MapType) type).getValueType());
            return Json.object("keys", keys, "values", values);
        } else if (value instanceof RowData) {
            RowData row = (RowData) value;
            List<String> fields = new ArrayList<>();
            for (int at = 0; at < row.getArity(); at++) {
                LogicalType field = LogicalTypeChecks.getFieldTypes(type).get(at);
                fields.add(json(field, RowData.createFieldGetter(field, at).getFieldOrNull(row)));
            }
            String inner = "[" + String.join(",", fields) + "]";
            return Json.object("row", inner, "kind", Json.of(row.getRowKind().name()));
        }
        return Json.of(value);
    }

    private static String array(ArrayData data, LogicalType type) {
        ArrayData.ElementGetter getter = ArrayData.createElementGetter(type);
        List<String> items = new ArrayList<>();
        for (int at = 0; at < data.size(); at++) {
            items.add(json(type, getter.getElementOrNull(data, at)));
        }
        return "[" + String.join(",", items) + "]";
    }
}
