package golden;

import java.math.BigDecimal;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

/** Queries and joins whose state has serializers that the other jobs have not. */
public class Tables {
    private static final Map<String, String> QUERIES =
            Map.ofEntries(
                    Map.entry(
                            "over_rows",
                            "SELECT id, SUM(amount) OVER (PARTITION BY name ORDER BY `at`"
                                    + " ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) FROM events"),
                    Map.entry(
                            "over_range",
                            "SELECT id, COUNT(*) OVER (PARTITION BY name ORDER BY `at` RANGE BETWEEN"
                                    + " INTERVAL '5' SECOND PRECEDING AND CURRENT ROW) FROM events"),
                    Map.entry(
                            "lag",
                            "SELECT id, LAG(name, 2) OVER (PARTITION BY small ORDER BY `at`)"
                                    + " FROM events"),
                    Map.entry(
                            "top_of_counts",
                            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY small"
                                    + " ORDER BY n DESC) AS place FROM (SELECT small, name, COUNT(*)"
                                    + " AS n FROM events GROUP BY small, name)) WHERE place <= 2"),
                    Map.entry(
                            "top_of_sums",
                            "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY small"
                                    + " ORDER BY n) AS place FROM (SELECT small, name, SUM(amount)"
                                    + " AS n FROM events GROUP BY small, name)) WHERE place <= 2"),
                    Map.entry(
                            "newest",
                            "SELECT id, name FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY name"
                                    + " ORDER BY `at` DESC) AS place FROM events) WHERE place = 1"),
                    Map.entry(
                            "first",
                            "SELECT id, name FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY name"
                                    + " ORDER BY PROCTIME()) AS place FROM events) WHERE place = 1"),
                    Map.entry(
                            "near",
                            "SELECT a.id, b.name FROM events a JOIN events b ON a.name = b.name AND"
                                    + " a.`at` BETWEEN b.`at` - INTERVAL '5' SECOND AND b.`at`"),
                    Map.entry(
                            "outer",
                            "SELECT a.id, b.id FROM events a FULL JOIN events b"
                                    + " ON a.id = b.id + 1"),
                    Map.entry(
                            "last",
                            "SELECT small, FIRST_VALUE(n), LAST_VALUE(n), LISTAGG(name) FROM"
                                    + " (SELECT small, name, SUM(amount) AS n FROM events"
                                    + " GROUP BY small, name) GROUP BY small"),
                    Map.entry(
                            "distinct",
                            "SELECT small, COUNT(DISTINCT name), COLLECT(name), MIN(n), MAX(n) FROM"
                                    + " (SELECT small, name, SUM(amount) AS n FROM events"
                                    + " GROUP BY small, name) GROUP BY small"),
                    Map.entry(
                            "sorted", "SELECT id, name FROM events ORDER BY `at`, id"),
                    Map.entry(
                            "hops",
                            "SELECT small, window_start, SUM(amount) FROM TABLE(HOP(TABLE events,"
                                    + " DESCRIPTOR(`at`), INTERVAL '2' SECOND, INTERVAL '6' SECOND))"
                                    + " GROUP BY small, window_start, window_end"));

    private Tables() {}

    /** Run the steps, as those of Main. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), (env, words) -> build(env));
    }

    private static void build(StreamExecutionEnvironment env) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.local-time-zone", "UTC");
        tables.getConfig().set("table.exec.source.idle-timeout", "1 s");
        String[] names = {"id", "name", "small", "amount", "at"};
        DataStream<Long> numbers = Main.numbers(env, false);
        DataStream<Row> rows =
                numbers.map(
                                n ->
                                        Row.of(
                                                n,
                                                n % 7 == 0 ? null : "name " + n % 7,
                                                (int) (n % 3),
                                                BigDecimal.valueOf(n * 100, 2),
                                                LocalDateTime.ofEpochSecond(n, 0, ZoneOffset.UTC)))
                        .returns(
                                Types.ROW_NAMED(
                                        names,
                                        Types.LONG,
                                        Types.STRING,
                                        Types.INT,
                                        Types.BIG_DEC,
                                        Types.LOCAL_DATE_TIME))
                        .uid("rows");
        Schema schema =
                Schema.newBuilder()
                        .column("id", DataTypes.BIGINT())
                        .column("name", DataTypes.STRING())
                        .column("small", DataTypes.INT())
                        .column("amount", DataTypes.DECIMAL(12, 2))
                        .column("at", DataTypes.TIMESTAMP(3))
                        .watermark("at", "`at` - INTERVAL '20' SECOND")
                        .build();
        tables.createTemporaryView("events", tables.fromDataStream(rows, schema));
        QUERIES.forEach(
                (name, query) ->
                        tables.toChangelogStream(tables.sqlQuery(query))
                                .map(row -> true)
                                .returns(Types.BOOLEAN)
                                .uid(name));
        joins(numbers);
    }

    private static void joins(DataStream<Long> numbers) {
        DataStream<Long> timed =
                numbers.assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Long>forMonotonousTimestamps()
                                .withTimestampAssigner((n, at) -> n));
        timed.keyBy(n -> n % 5)
                .intervalJoin(timed.keyBy(n -> n % 5))
                .between(java.time.Duration.ofMillis(-9), java.time.Duration.ofMillis(9))
                .process(
                        new ProcessJoinFunction<Long, Long, Long>() {
                            @Override
                            public void processElement(
                                    Long left, Long right, Context at, Collector<Long> out) {
                                out.collect(left - right);
                            }
                        })
                .uid("interval")
                .map(n -> n)
                .returns(Types.LONG);
        timed.join(timed.map(n -> "text " + n).returns(Types.STRING))
                .where(n -> n % 5)
                .equalTo(text -> (long) text.length())
                .window(TumblingEventTimeWindows.of(java.time.Duration.ofHours(1)))
                .apply((n, text) -> text + n, Types.STRING)
                .map(text -> text.length())
                .returns(Types.INT);
    }
}
