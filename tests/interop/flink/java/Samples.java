package golden;

import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.RecordComponent;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.typeutils.EitherTypeInfo;
import org.apache.flink.api.java.typeutils.ListTypeInfo;
import org.apache.flink.api.java.typeutils.MapTypeInfo;
import org.apache.flink.api.java.typeutils.ObjectArrayTypeInfo;
import org.apache.flink.api.java.typeutils.PojoTypeInfo;
import org.apache.flink.api.java.typeutils.RowTypeInfo;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.types.Either;
import org.apache.flink.types.Row;

/** A value of any type, which follows from a number. */
public class Samples {
    private Samples() {}

    static Object of(TypeInformation<?> type, long number) {
        try {
            return composite(type, number);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Object composite(TypeInformation<?> type, long number)
            throws ReflectiveOperationException {
        if (type instanceof PojoTypeInfo) {
            PojoTypeInfo<?> pojo = (PojoTypeInfo<?>) type;
            if (pojo.getTypeClass().isRecord()) {
                return record(pojo.getTypeClass(), number);
            }
            Object value = pojo.getTypeClass().getDeclaredConstructor().newInstance();
            for (int at = 0; at < pojo.getArity(); at++) {
                Field field = pojo.getPojoFieldAt(at).getField();
                field.set(value, of(pojo.getPojoFieldAt(at).getTypeInformation(), number));
            }
            return value;
        } else if (type instanceof RowTypeInfo) {
            RowTypeInfo rows = (RowTypeInfo) type;
            Row row = new Row(rows.getArity());
            for (int at = 0; at < rows.getArity(); at++) {
                row.setField(at, of(rows.getTypeAt(at), number + at));
            }
            return row;
        } else if (type instanceof TupleTypeInfo) {
            TupleTypeInfo<?> tuples = (TupleTypeInfo<?>) type;
            Tuple tuple = (Tuple) tuples.getTypeClass().getDeclaredConstructor().newInstance();
            for (int at = 0; at < tuples.getArity(); at++) {
                tuple.setField(of(tuples.getTypeAt(at), number + at), at);
            }
            return tuple;
        } else if (type instanceof ListTypeInfo) {
            TypeInformation<?> element = ((ListTypeInfo<?>) type).getElementTypeInfo();
            return new ArrayList<>(List.of(of(element, number), of(element, number + 1)));
        } else if (type instanceof MapTypeInfo) {
            MapTypeInfo<?, ?> maps = (MapTypeInfo<?, ?>) type;
            Map<Object, Object> map = new HashMap<>();
            map.put(of(maps.getKeyTypeInfo(), number), of(maps.getValueTypeInfo(), number));
            return map;
        } else if (type instanceof EitherTypeInfo) {
            EitherTypeInfo<?, ?> either = (EitherTypeInfo<?, ?>) type;
            return number % 2 == 0
                    ? Either.Left(of(either.getLeftType(), number))
                    : Either.Right(of(either.getRightType(), number));
        } else if (type instanceof ObjectArrayTypeInfo) {
            TypeInformation<?> element = ((ObjectArrayTypeInfo<?, ?>) type).getComponentInfo();
            Object array = Array.newInstance(element.getTypeClass(), 1);
            Array.set(array, 0, of(element, number));
            return array;
        }
        return simple(type.getTypeClass(), number);
    }

    private static Object record(Class<?> type, long number) throws ReflectiveOperationException {
        RecordComponent[] parts = type.getRecordComponents();
        Class<?>[] types = new Class<?>[parts.length];
        Object[] values = new Object[parts.length];
        for (int at = 0; at < parts.length; at++) {
            types[at] = parts[at].getType();
            values[at] = simple(types[at], number);
        }
        return type.getDeclaredConstructor(types).newInstance(values);
    }

    private static Object simple(Class<?> type, long number) throws ReflectiveOperationException {
        if (type == Long.class || type == long.class) {
            return number;
        } else if (type == Integer.class || type == int.class) {
            return (int) number;
        } else if (type == Short.class || type == short.class) {
            return (short) number;
        } else if (type == Byte.class || type == byte.class) {
            return (byte) number;
        } else if (type == Float.class || type == float.class) {
            return (float) number;
        } else if (type == Double.class || type == double.class) {
            return number / 4.0;
        } else if (type == Boolean.class || type == boolean.class) {
            return number % 2 == 0;
        } else if (type == String.class) {
            return "text " + number;
        } else if (type == BigDecimal.class) {
            return BigDecimal.valueOf(number, 2);
        } else if (type == UUID.class) {
            return new UUID(number, number);
        } else if (type.isEnum()) {
            return type.getEnumConstants()[(int) (number % type.getEnumConstants().length)];
        } else if (type == byte[].class) {
            return new byte[] {(byte) number};
        }
        Constructor<?> constructor = type.getDeclaredConstructor();
        constructor.setAccessible(true);
        Object value = constructor.newInstance();
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers())) {
                field.setAccessible(true);
                field.set(value, simple(field.getType(), number));
            }
        }
        return value;
    }
}
