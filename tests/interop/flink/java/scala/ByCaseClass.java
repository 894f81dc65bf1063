package golden;

import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.api.scala.typeutils.CaseClassTypeInfo;
import org.apache.flink.api.scala.typeutils.OptionTypeInfo;
import org.apache.flink.api.scala.typeutils.ScalaCaseClassSerializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import scala.Option;
import scala.Product;
import scala.Tuple2;
import scala.Tuple3;

/** Runs jobs as {@link Main} does, whose keys are tuples of Scala, which are case classes. */
public class ByCaseClass {
    private ByCaseClass() {}

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        Main.run(List.of(steps), ByCaseClass::build);
    }

    private static void build(StreamExecutionEnvironment env, Map<String, String> words) {
        boolean dumps = words.get("do").equals("dump");
        DataStream<Event> events = Main.events(Main.numbers(env, dumps));
        TypeInformation<Object> pair = caseClass(Tuple2.class, Types.STRING, Types.LONG);
        TypeInformation<?> option = new OptionTypeInfo<Object, Option<Object>>(cast(Types.LONG));
        TypeInformation<Object> key = caseClass(Tuple3.class, pair, option, Types.DOUBLE);
        events.keyBy(ByCaseClass::key, key)
                .transform("by_case_class", Types.LONG, new Few<Object>("by_case_class", dumps))
                .uid("by_case_class");
    }

    private static Object key(Event event) {
        Option<Object> option = event.small < 0 ? Option.empty() : Option.apply(event.id);
        Object number = event.small % 2 == 0 ? event.small : event.amount;
        double amount = ((Number) number).doubleValue();
        return new Tuple3<>(new Tuple2<>(event.name, -event.number), option, amount);
    }

    @SuppressWarnings("unchecked")
    private static TypeInformation<Object> caseClass(Class<?> type, TypeInformation<?>... fields) {
        return cast(new CaseClass((Class<Product>) type, fields));
    }

    @SuppressWarnings("unchecked")
    private static TypeInformation<Object> cast(TypeInformation<?> type) {
        return (TypeInformation<Object>) type;
    }

    private static class CaseClass extends CaseClassTypeInfo<Product> {
        private final Class<Product> type;
        private final TypeInformation<?>[] fields;

        CaseClass(Class<Product> type, TypeInformation<?>[] fields) {
            super(
                    type,
                    fields,
                    scala.Predef.wrapRefArray(fields),
                    scala.Predef.wrapRefArray(names(fields.length)));
            this.type = type;
            this.fields = fields;
        }

        private static String[] names(int count) {
            String[] names = new String[count];
            for (int at = 0; at < count; at++) {
                names[at] = "_" + (at + 1);
            }
            return names;
        }

        @Override
        public TypeSerializer<Product> createSerializer(ExecutionConfig config) {
            TypeSerializer<?>[] serializers = new TypeSerializer<?>[fields.length];
            for (int at = 0; at < fields.length; at++) {
                serializers[at] = fields[at].createSerializer(config);
            }
            return new ScalaCaseClassSerializer<>(type, serializers);
        }
    }
}
