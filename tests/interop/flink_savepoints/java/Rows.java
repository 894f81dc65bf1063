package golden;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
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
import org.apache.flink.table.types.logical.TimeType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.TinyIntType;
import org.apache.flink.table.types.logical.VarBinaryType;
import org.apache.flink.table.types.logical.VarCharType;
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
        RowType row = (RowType) type;
        GenericRowData data = new GenericRowData(row.getFieldCount());
        data.setRowKind(RowKind.values()[random.nextInt(4)]);
        for (int at = 0; at < row.getFieldCount(); at++) {
            LogicalType field = row.getTypeAt(at);
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
                LogicalType field = ((RowType) type).getTypeAt(at);
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
