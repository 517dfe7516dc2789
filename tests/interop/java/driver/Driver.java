import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.ClientConfig;

/**
 * The real Java client, driven by the commands of tests/interop/client_driver.py; the protocol is described there.
 *
 * <p>Compiles against the 4.9 and the 5.x client: names that moved between packages are never written.
 */
public final class Driver {
    private static final Map<String, AutoCloseable> OPEN = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        ExecutorService calls = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject call = JSON.parseObject(line);
            calls.execute(() -> answer(call));
        }
        System.exit(0);
    }

    private static void answer(JSONObject call) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("call", call.get("call"));
        try {
            answer.put("result", run(call));
        } catch (Throwable error) {
            StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            answer.put("error", text.toString());
        }
        print(answer);
    }

    private static Object run(JSONObject call) throws Exception {
        String name = call.getString("name");
        switch (call.getString("do")) {
            case "producer":
                OPEN.put(name, new Producer(call));
                return null;
            case "send":
                return ((Producer) OPEN.get(name)).send(call);
            case "request":
                return ((Producer) OPEN.get(name)).request(call);
            case "consumer":
                OPEN.put(name, new PushConsumer(call));
                return null;
            case "queues":
                return ((PushConsumer) OPEN.get(name)).queues();
            case "lite":
                OPEN.put(name, new LiteConsumer(call));
                return null;
            case "pull":
                return PullConsumer.pull(call);
            case "reset_offset":
                return Admin.resetOffset(call);
            case "close":
                OPEN.remove(name).close();
                return null;
            default:
                throw new IllegalArgumentException("unknown command " + call);
        }
    }

    /** What every client of these tests has: its own connection, and intervals made for tests. */
    static void configure(ClientConfig client, JSONObject call) {
        client.setNamesrvAddr(call.getString("namesrv"));
        client.setInstanceName(call.getString("name") + "-" + ProcessHandle.current().pid());
        // Heartbeats wait so long, and with them the next look at the routes.
        client.setMqClientApiTimeout(call.containsKey("timeoutMillis") ? call.getIntValue("timeoutMillis") : 30000);
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        client.setPersistConsumerOffsetInterval(500);
        if (call.containsKey("namespace")) {
            client.setNamespace(call.getString("namespace"));
        }
    }

    static synchronized void print(Map<String, ?> line) {
        byte[] bytes = (JSON.toJSONString(line, SerializerFeature.MapSortField) + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }
}
