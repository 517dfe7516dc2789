import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Many runs of mqadmin in one process: a start of Java costs more than a command.
 *
 * <p>Arguments: the NameServer, and a file with one JSON array of words per line. Prints for each what the command
 * printed, and how it ended: {"out": text, "error": text or null, "over": whether it came to its end}. A command that
 * does not end by itself is interrupted after a few seconds.
 */
public final class RunAdmin {
    private static final long LIMIT_MILLIS = 12_000;
    /** Commands that run until somebody stops them. */
    private static final long ENDLESS_MILLIS = 2_500;

    public static void main(String[] arguments) throws Exception {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, arguments[0]);
        MQAdminStartup.initCommand();
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        for (String line : Files.readAllLines(Paths.get(arguments[1]), StandardCharsets.UTF_8)) {
            String[] words = JSON.parseArray(line).toArray(new String[0]);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(System.out);
            Map<String, Object> answer = new LinkedHashMap<>();
            Thread thread = new Thread(() -> answer.put("error", run(words)));
            thread.setDaemon(true);
            thread.start();
            boolean endless = words[0].equals("clusterRT") || words[0].equals("startMonitoring");
            thread.join(endless ? ENDLESS_MILLIS : LIMIT_MILLIS);
            boolean over = !thread.isAlive();
            if (!over) {
                thread.interrupt();
                thread.join(LIMIT_MILLIS);
            }
            answer.put("over", over);
            answer.put("out", out.toString("UTF-8"));
            System.setErr(errors);
            answers.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue));
            answers.flush();
        }
        System.exit(0);
    }

    private static String run(String[] words) {
        try {
            SubCommand command = find(words[0]);
            String[] options = new String[words.length - 1];
            System.arraycopy(words, 1, options, 0, options.length);
            Options known = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
            CommandLine parsed = new PosixParser().parse(known, options);
            command.execute(parsed, known, null);
            return null;
        } catch (Throwable error) {
            StringBuilder text = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                text.append(cause).append('\n');
            }
            return text.toString();
        }
    }

    private static SubCommand find(String name) {
        for (SubCommand command : Commands.all()) {
            if (command.commandName().equals(name)) {
                return command;
            }
        }
        throw new IllegalArgumentException("no command " + name);
    }

    private static final class Commands extends MQAdminStartup {
        static List<SubCommand> all() {
            return subCommandList;
        }
    }
}
