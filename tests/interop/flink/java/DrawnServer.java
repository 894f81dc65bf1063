package golden;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutionException;
import org.apache.flink.runtime.client.JobStatusMessage;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.util.ExceptionUtils;

/**
 * Runs jobs that a drawn description defines, in one cluster. Each line of the standard input is a
 * step of Main, in which plan= is the path of the description. Each step ends with "done", or with
 * "failed" and the causes on the same line.
 */
public class DrawnServer {
    private DrawnServer() {}

    /** Run steps until the input ends. */
    public static void main(String[] none) throws Exception {
        BufferedReader steps =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (MiniCluster mini = Main.cluster()) {
            mini.start();
            for (String step = steps.readLine(); step != null; step = steps.readLine()) {
                try {
                    Main.run(mini, Main.words(step), Drawn::build);
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
