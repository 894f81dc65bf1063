package golden;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.flink.runtime.client.JobStatusMessage;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.util.ExceptionUtils;

/**
 * Runs jobs in one cluster: those that a drawn description defines, or with the argument "evolved"
 * those of {@link Version}. Each line of the standard input is a step of Main, in which plan= is
 * the path of the description, or jar= that of the version. A step do=compile makes such a jar.
 * Each step ends with "done", or with "failed" and the causes on the same line.
 */
public class DrawnServer {
    private DrawnServer() {}

    /** Run steps until the input ends. */
    public static void main(String[] words) throws Exception {
        Main.Job job = words.length == 0 ? Drawn::build : Evolved::build;
        BufferedReader steps =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (MiniCluster mini = Main.cluster()) {
            mini.start();
            for (String step = steps.readLine(); step != null; step = steps.readLine()) {
                try {
                    Map<String, String> parsed = Main.words(step);
                    if (parsed.get("do").equals("compile")) {
                        Evolved.compile(Path.of(parsed.get("from")), Path.of(parsed.get("jar")));
                    } else {
                        Main.run(mini, parsed, job);
                    }
                    System.out.println("done");
                } catch (Exception error) {
                    String causes = ExceptionUtils.stringifyException(error);
                    System.out.println("failed " + Json.quoted(causes));
                    cancelAll(mini);
                }
            }
        }
    }

    private static void cancelAll(MiniCluster mini) throws Exception {
        for (JobStatusMessage job : mini.listJobs().get()) {
            if (!job.getJobState().isGloballyTerminalState()) {
                try {
                    mini.cancelJob(job.getJobId()).get();
                } catch (ExecutionException error) {
                    // The job failed before it was canceled, so it ends without this call.
                }
                mini.requestJobResult(job.getJobId()).get();
            }
        }
    }
}
