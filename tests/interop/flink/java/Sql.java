package golden;

import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Queries that keep state, and what they have said so far. */
public class Sql {
    private static final Map<String, Integer> SAID = new TreeMap<>();
    private static final Map<String, String> QUERIES = new LinkedHashMap<>();

    static {
        QUERIES.put(
                "by_name",
                "SELECT name, COUNT(*), SUM(id), MAX(text), COUNT(DISTINCT small), AVG(amount)"
                        + " FROM events GROUP BY name");
        QUERIES.put(
                "by_day_and_small",
                "SELECT `day`, small, SUM(price), MIN(`at`) FROM events GROUP BY `day`, small");
        QUERIES.put("by_id", "SELECT id, COUNT(*), LAST_VALUE(text) FROM events GROUP BY id");
        QUERIES.put("by_price", "SELECT price, flag, COUNT(*) FROM events GROUP BY price, flag");
        QUERIES.put("by_time", "SELECT `at`, COUNT(id) FROM events GROUP BY `at`");
        QUERIES.put("total", "SELECT COUNT(*), SUM(price) FROM events");
        QUERIES.put(
                "top",
                "SELECT name, number FROM (SELECT *, ROW_NUMBER() OVER"
                        + " (PARTITION BY name ORDER BY number DESC) AS place FROM events)"
                        + " WHERE place <= 3");
        QUERIES.put(
                "joined",
                "SELECT a.id, a.number, b.text FROM events a JOIN events b ON a.id = b.id"
                        + " AND a.number = b.number + 1");
        QUERIES.put(
                "by_minute",
                "SELECT name, window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE events,"
                        + " DESCRIPTOR(`at`), INTERVAL '1' MINUTE))"
                        + " GROUP BY name, window_start, window_end");
    }

    private Sql() {}

    static void clear() {
        synchronized (SAID) {
            SAID.clear();
        }
    }

    /** Each row and how often it is in a result, by what was said since the start. */
    static List<String> said() {
        List<String> lines = new ArrayList<>();
        synchronized (SAID) {
            SAID.forEach(
                    (row, times) -> {
                        if (times != 0) {
                            lines.add(Json.object("result", row, "times", times));
                        }
                    });
        }
        return lines;
    }

    static void build(StreamExecutionEnvironment env, DataStream<Event> events) {
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        tables.getConfig().set("table.local-time-zone", "UTC");
        String[] names = {
            "number", "name", "id", "small", "text", "amount", "price", "day", "at", "flag"
        };
        TypeInformation<?>[] types = {
            Types.LONG,
            Types.STRING,
            Types.LONG,
            Types.INT,
            Types.STRING,
            Types.DOUBLE,
            Types.BIG_DEC,
            Types.LOCAL_DATE,
            Types.LOCAL_DATE_TIME,
            Types.BOOLEAN
        };
        DataStream<Row> rows =
                events.map(Sql::row)
                        .returns(Types.ROW_NAMED(names, types))
                        .setParallelism(1)
                        .uid("rows");
        Schema schema =
                Schema.newBuilder()
                        .column("number", DataTypes.BIGINT().notNull())
                        .column("name", DataTypes.STRING())
                        .column("id", DataTypes.BIGINT())
                        .column("small", DataTypes.INT())
                        .column("text", DataTypes.STRING())
                        .column("amount", DataTypes.DOUBLE())
                        .column("price", DataTypes.DECIMAL(12, 2))
                        .column("day", DataTypes.DATE())
                        .column("at", DataTypes.TIMESTAMP(3))
                        .column("flag", DataTypes.BOOLEAN())
                        .watermark("at", "SOURCE_WATERMARK()")
                        .build();
        tables.createTemporaryView("events", tables.fromDataStream(rows, schema));
        QUERIES.forEach(
                (name, query) -> {
                    Table result = tables.sqlQuery(query);
                    tables.toChangelogStream(result)
                            .map(row -> say(name, row))
                            .returns(Types.BOOLEAN)
                            .uid(name);
                });
    }

    private static Row row(Event event) {
        LocalDateTime at =
                LocalDateTime.ofInstant(
                        Instant.ofEpochMilli(event.time / 5000 * 5000), ZoneOffset.UTC);
        return Row.of(
                event.number,
                event.small == 0 ? null : event.name,
                event.id,
                event.small == 1 ? null : event.small,
                event.text,
                event.amount,
                BigDecimal.valueOf(event.id % 50, 2),
                LocalDate.ofEpochDay(event.id / 10_000_000),
                at,
                event.small > 2 ? null : event.small > 0);
    }

    static boolean say(String query, Row row) {
        boolean adds = row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER;
        row.setKind(RowKind.INSERT);
        synchronized (SAID) {
            SAID.merge(Json.object("query", Json.of(query), "row", Json.of(row)), adds ? 1 : -1, Integer::sum);
        }
        return adds;
    }
}
