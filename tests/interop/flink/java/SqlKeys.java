package golden;

import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.BooleanType;
import org.apache.flink.table.types.logical.DateType;
import org.apache.flink.table.types.logical.DecimalType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LocalZonedTimestampType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.TimeType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarBinaryType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.Collector;

/** Says what a restored job finds in the state of the keys 0 to 99, which are rows of Flink SQL. */
public class SqlKeys {
    private static final LogicalType[] TYPES = {
        new VarCharType(VarCharType.MAX_LENGTH),
        new BigIntType(),
        new IntType(),
        new DecimalType(10, 2),
        new DecimalType(38, 10),
        new DateType(),
        new TimeType(3),
        new TimestampType(3),
        new TimestampType(6),
        new LocalZonedTimestampType(6),
        new BooleanType(),
        new VarBinaryType(VarBinaryType.MAX_LENGTH)
    };

    private SqlKeys() {}

    /** Arguments: the savepoint, a file for what is found, the parallelism, the key groups. */
    public static void main(String[] words) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("rest.bind-port", "0");
        settings.setString("execution.state-recovery.path", words[0]);
        settings.setString("execution.savepoint.path", words[0]);
        StreamExecutionEnvironment env =
                StreamExecutionEnvironment.createLocalEnvironment(
                        Integer.parseInt(words[2]), settings);
        env.setMaxParallelism(Integer.parseInt(words[3]));
        List<String> found = new ArrayList<>();
        env.fromSequence(0, 99)
                .keyBy(new Key(), InternalTypeInfo.ofFields(TYPES))
                .process(new Find())
                .uid("keyed")
                .executeAndCollect()
                .forEachRemaining(found::add);
        Collections.sort(found);
        Files.write(Path.of(words[1]), found, StandardCharsets.UTF_8);
    }

    private static class Key implements KeySelector<Long, RowData> {
        private transient RowDataSerializer rows;

        @Override
        public RowData getKey(Long n) {
            if (rows == null) {
                rows = new RowDataSerializer(TYPES);
            }
            boolean isNull = n % 10 == 0;
            GenericRowData row =
                    GenericRowData.of(
                            isNull ? null : StringData.fromString("key " + n),
                            n,
                            isNull ? null : (int) -n,
                            DecimalData.fromBigDecimal(BigDecimal.valueOf(n, 2), 10, 2),
                            DecimalData.fromBigDecimal(BigDecimal.valueOf(-n, 10), 38, 10),
                            (int) (n * 100),
                            (int) (n * 1000),
                            TimestampData.fromEpochMillis(n),
                            TimestampData.fromEpochMillis(n, 1000),
                            TimestampData.fromEpochMillis(-n, 2000),
                            isNull ? null : n % 2 == 0,
                            isNull ? null : ("bytes " + n).getBytes(StandardCharsets.UTF_8));
            return rows.toBinaryRow(row).copy();
        }
    }

    private static class Find extends KeyedProcessFunction<RowData, Long, String> {
        private transient ValueState<Long> total;
        private transient ListState<String> texts;

        @Override
        public void open(OpenContext context) {
            total = getRuntimeContext().getState(new ValueStateDescriptor<>("total", Types.LONG));
            texts =
                    getRuntimeContext()
                            .getListState(new ListStateDescriptor<>("texts", Types.STRING));
        }

        @Override
        public void processElement(Long n, Context context, Collector<String> out)
                throws Exception {
            out.collect(n + " " + total.value() + " " + String.join(",", texts.get()));
        }
    }
}
