package golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.PlanReference;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Compiles and runs plans of SQL, one step after another. A step is one of these: "compile STATEMENTS PLAN
 * NAME=VALUE …", where the file has statements between semicolons, and the last is a statement set; "renumber PLAN", which makes its
 * numbers those of the first plan that a process compiles; "link FOLDER NAME", which makes the name
 * stand for the folder; "run PLAN BACKEND SAVEPOINT", where SAVEPOINT can be "-"; "stop PLAN BACKEND SAVEPOINT TARGET", which stops an
 * unbounded job with a savepoint, and links it as TARGET/newest. A run writes what its sinks print between two lines with its number. A stop writes
 * "stopped" and the savepoint, or "refused" and the last cause.
 */
public class Plans {
    private static final int SECONDS = 120;
    private static final int FILLING_MILLIS = 2000;
    private static final int ATTEMPTS = 10;

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
            if (words[0].equals("renumber")) {
                renumber(Path.of(words[1]));
                continue;
            }
            if (words[0].equals("stop")) {
                stop(words);
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

    private static void renumber(Path plan) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        JsonNode document = mapper.readTree(plan.toFile());
        int before = Integer.MAX_VALUE;
        for (JsonNode node : document.get("nodes")) {
            before = Math.min(before, node.get("id").asInt() - 1);
        }
        for (JsonNode node : document.get("nodes")) {
            ((ObjectNode) node).put("id", node.get("id").asInt() - before);
        }
        for (JsonNode edge : document.get("edges")) {
            for (String end : new String[] {"source", "target"}) {
                ((ObjectNode) edge).put(end, edge.get(end).asInt() - before);
            }
        }
        mapper.writeValue(plan.toFile(), document);
    }

    private static void stop(String[] words) {
        try {
            JobClient job = start(words[1], words[2], words[3]).getJobClient().get();
            String written = stopped(job, words[4]);
            Path savepoint = Path.of(written.replaceFirst("^file:", ""));
            Files.createSymbolicLink(Path.of(words[4], "newest"), savepoint);
            System.out.println("stopped " + savepoint);
        } catch (Exception error) {
            Throwable last = error;
            while (last.getCause() != null) {
                last = last.getCause();
            }
            System.out.println("refused " + String.valueOf(last).replace('\n', ' '));
        }
    }

    private static String stopped(JobClient job, String target) throws Exception {
        CompletableFuture<JobExecutionResult> end = job.getJobExecutionResult();
        for (int attempt = 1; ; attempt++) {
            Thread.sleep(FILLING_MILLIS);
            if (end.isDone()) {
                end.get();
            }
            try {
                return job.stopWithSavepoint(false, target, SavepointFormatType.CANONICAL)
                        .get(FILLING_MILLIS * ATTEMPTS, TimeUnit.MILLISECONDS);
            } catch (ExecutionException error) { // its tasks do not run yet, or it has failed
                if (attempt == ATTEMPTS) {
                    throw error;
                }
            }
        }
    }

    private static void run(String plan, String backend, String savepoint) throws Exception {
        start(plan, backend, savepoint).await(SECONDS, TimeUnit.SECONDS);
    }

    private static TableResult start(String plan, String backend, String savepoint) {
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", backend);
        settings.setString("rest.bind-port", "0");
        settings.setString("restart-strategy.type", "none");
        if (!savepoint.equals("-")) {
            settings.setString("execution.state-recovery.path", savepoint);
            settings.setString("execution.savepoint.path", savepoint);
        }
        return environment(settings).loadPlan(PlanReference.fromFile(plan)).execute();
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
