package golden;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * A job with one value for each of many keys. It reads its steps from the standard input, one a
 * line, so that a restore can be measured in a process that has made one before.
 */
public class Many {
    private Many() {}

    /** Run each step as it comes. */
    public static void main(String[] none) throws Exception {
        BufferedReader steps =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Main.run(() -> steps.lines().iterator(), Many::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        long size = Long.parseLong(words.get("keys")) / Numbers.SPLITS;
        env.fromSource(
                        new Numbers(false, size),
                        WatermarkStrategy.noWatermarks(),
                        "numbers",
                        Types.LONG)
                .uid("numbers")
                .setParallelism(1)
                .keyBy(number -> key(number), Types.STRING)
                .process(new Count())
                .uid("many");
    }

    private static String key(long number) {
        String digits = Long.toString(number);
        return "user-000000000".substring(0, 14 - digits.length()) + digits;
    }

    /** Keeps the number of each key. */
    static class Count extends KeyedProcessFunction<String, Long, Long> {
        private transient ValueState<Long> last;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("last", Types.LONG));
        }

        @Override
        public void processElement(Long number, Context context, Collector<Long> out)
                throws Exception {
            last.update(number);
        }
    }
}
