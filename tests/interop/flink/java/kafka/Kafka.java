package golden;

import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** A job that reads a topic of Kafka: bootstrap=, topic=; its results are what it has read. */
public class Kafka {
    private Kafka() {}

    /** Run steps, as Main does. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), Kafka::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        KafkaSource<Row> source =
                KafkaSource.<Row>builder()
                        .setBootstrapServers(words.get("bootstrap"))
                        .setTopics(words.get("topic"))
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setDeserializer(new Records())
                        .setProperties(new Properties())
                        .build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka")
                .uid("kafka")
                .map(
                        row -> {
                            boolean said = Sql.say("read", row);
                            Numbers.count();
                            return said;
                        })
                .returns(Types.BOOLEAN)
                .uid("read");
    }

    /** Makes of a record its partition, its offset and its value. */
    private static class Records implements KafkaRecordDeserializationSchema<Row> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Row> out) {
            out.collect(Row.of(record.partition(), record.offset(), new String(record.value())));
        }

        @Override
        public TypeInformation<Row> getProducedType() {
            return Types.ROW(Types.INT, Types.LONG, Types.STRING);
        }
    }
}
