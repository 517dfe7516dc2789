import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.Options;
import org.apache.commons.cli.PosixParser;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Many runs of mqadmin in one process: a start of Java costs more than a command.
 *
 * <p>Driven as the programs of tests/interop/client_driver.py are, by `run`: `namesrv`, `words` of a command line,
 * and `accessKey` and `secretKey` for signed requests.
 * The result is what it printed, and how it ended: {"out": text, "error": text, "over": whether it came to its
 * end}. A command that does not end by itself is interrupted after a few seconds.
 */
public final class RunAdmin {
    private static final long LIMIT_MILLIS = 20_000;
    /** Commands that run until somebody stops them. */
    private static final long ENDLESS_MILLIS = 2_000;

    public static void main(String[] arguments) throws Exception {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        PrintStream answers = System.out;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject call = JSON.parseObject(line);
            System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, call.getString("namesrv"));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("call", call.get("call"));
            answer.put("result", outcome(call.getJSONArray("words").toArray(new String[0]), hook(call)));
            answers.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue));
            answers.flush();
        }
        System.exit(0);
    }

    private static RPCHook hook(JSONObject call) {
        String accessKey = call.getString("accessKey");
        return accessKey == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, call.getString("secretKey")));
    }

    private static Map<String, Object> outcome(String[] words, RPCHook hook) throws Exception {
        Map<String, Object> outcome = new ConcurrentHashMap<>();
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        PrintStream errors = System.err;
        System.setOut(new PrintStream(out, true, "UTF-8"));
        System.setErr(System.out);
        Thread thread = new Thread(() -> outcome.put("error", run(words, hook)));
        thread.setDaemon(true);
        thread.start();
        boolean endless = words[0].equals("clusterRT") || words[0].equals("startMonitoring");
        thread.join(endless ? ENDLESS_MILLIS : LIMIT_MILLIS);
        outcome.put("over", !thread.isAlive());
        if (thread.isAlive()) {
            thread.interrupt();
            thread.join(LIMIT_MILLIS);
        }
        outcome.put("out", out.toString("UTF-8"));
        System.setErr(errors);
        return outcome;
    }

    private static String run(String[] words, RPCHook hook) {
        try {
            SubCommand command = find(words[0]);
            String[] options = new String[words.length - 1];
            System.arraycopy(words, 1, options, 0, options.length);
            Options known = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
            CommandLine parsed = new PosixParser().parse(known, options);
            command.execute(parsed, known, hook);
            return "";
        } catch (Throwable error) {
            StringBuilder text = new StringBuilder();
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                text.append(cause).append('\n');
            }
            return text.toString();
        }
    }

    private static SubCommand find(String name) {
        for (SubCommand command : Commands.fresh()) {
            if (command.commandName().equals(name)) {
                return command;
            }
        }
        throw new IllegalArgumentException("no command " + name);
    }

    private static final class Commands extends MQAdminStartup {
        /** Some commands keep a client that they have shut down, so that each can run but once. */
        static List<SubCommand> fresh() {
            subCommandList.clear();
            initCommand();
            return subCommandList;
        }
    }
}
