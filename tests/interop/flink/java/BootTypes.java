package golden;

import java.time.Instant;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.common.serialization.SerializerConfigImpl;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializerSnapshot;
import org.apache.flink.core.memory.DataOutputSerializer;

/** Prints the serializer snapshots that Flink makes of the types of {@link Boot}, and of more. */
public class BootTypes {
    private BootTypes() {}

    /** Fields with arrays of each kind. */
    public static class Arrays {
        public Long[] boxes;
        public Instant[] times;
        public java.math.BigDecimal[] sums;
        public Boot.Level[] levels;
        public double[] halves;
        public boolean[] flags;
        public org.apache.flink.api.java.tuple.Tuple2<String, Long>[] pairs;
    }

    /** Fields with collections of each kind. */
    public static class Collections {
        public List<Date> dates;
        public List<Boot.Level> levels;
        public List<byte[]> raws;
        public Set<Boot.Place> places;
        public Set<String> names;
        public Map<Boot.Place, String> cities;
        public Map<Integer, Boot.Level> ranks;
        public Map<String, long[]> numbers;
    }

    /** Print the name of each type and its snapshot. */
    public static void main(String[] arguments) throws Exception {
        print("account", Types.POJO(Boot.Account.class));
        print("basket", Types.POJO(Boot.Basket.class));
        print("spot", Types.POJO(Boot.Spot.class));
        print("arrays", Types.POJO(Arrays.class));
        print("collections", Types.POJO(Collections.class));
        print("row", Types.ROW_NAMED(new String[] {"a", "b"}, Types.STRING, Types.LONG));
        print("tuple", Types.TUPLE(Types.STRING, Types.POJO(Boot.Item.class)));
        print("list", Types.LIST(Types.POJO(Boot.Item.class)));
        print("map", Types.MAP(Types.STRING, Types.LOCAL_DATE_TIME));
        print("items", Types.OBJECT_ARRAY(Types.POJO(Boot.Item.class)));
    }

    private static void print(String name, TypeInformation<?> type) throws Exception {
        DataOutputSerializer out = new DataOutputSerializer(64);
        TypeSerializerSnapshot.writeVersionedSnapshot(
                out, type.createSerializer(new SerializerConfigImpl()).snapshotConfiguration());
        System.out.println("type " + name + " " + Json.hex(out.getCopyOfBuffer()));
    }
}
