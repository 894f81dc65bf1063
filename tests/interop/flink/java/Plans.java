package golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.PlanReference;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Compiles and runs plans of SQL, one step after another. A step is one of these: "compile STATEMENTS PLAN
 * NAME=VALUE …", where the file has statements between semicolons, and the last is a statement set; "link FOLDER NAME", which makes the name
 * stand for the folder; "run PLAN BACKEND SAVEPOINT", where SAVEPOINT can be "-". A run writes what its sinks print
 * between two lines with its number.
 */
public class Plans {
    private static final int SECONDS = 120;

    private Plans() {}

    /** Run the steps. */
    public static void main(String[] steps) throws Exception {
        for (int number = 0; number < steps.length; number++) {
            String[] words = steps[number].split(" ");
            if (words[0].equals("compile")) {
                compile(words);
                continue;
            }
            if (words[0].equals("link")) {
                Files.deleteIfExists(Path.of(words[2]));
                Files.createSymbolicLink(Path.of(words[2]), Path.of(words[1]));
                continue;
            }
            System.out.println("begin " + number);
            run(words[1], words[2], words[3]);
            System.out.println("end " + number);
        }
    }

    private static void compile(String[] words) throws Exception {
        Configuration settings = new Configuration();
        for (int index = 3; index < words.length; index++) {
            String[] setting = words[index].split("=");
            settings.setString(setting[0], setting[1]);
        }
        TableEnvironment tables = environment(settings);
        String[] texts = Files.readString(Path.of(words[1])).split(";\n\n");
        for (int index = 0; index < texts.length - 1; index++) {
            tables.executeSql(texts[index]);
        }
        tables.executeSql("COMPILE PLAN 'file://" + words[2] + "' FOR " + texts[texts.length - 1]);
    }

    private static void run(String plan, String backend, String savepoint) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", backend);
        settings.setString("rest.bind-port", "0");
        settings.setString("restart-strategy.type", "none");
        if (!savepoint.equals("-")) {
            settings.setString("execution.state-recovery.path", savepoint);
            settings.setString("execution.savepoint.path", savepoint);
        }
        TableResult result =
                environment(settings).loadPlan(PlanReference.fromFile(plan)).execute();
        result.await(SECONDS, TimeUnit.SECONDS);
    }

    private static TableEnvironment environment(Configuration settings) {
        settings.setString("parallelism.default", "2");
        settings.setString("table.local-time-zone", "UTC");
        return TableEnvironment.create(
                EnvironmentSettings.newInstance()
                        .inStreamingMode()
                        .withConfiguration(settings)
                        .build());
    }
}
