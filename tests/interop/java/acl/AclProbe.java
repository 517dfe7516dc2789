import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Sends requests that Java's own AclClientRPCHook has signed, and runs Java's clients with it.
 *
 * <p>Driven as the programs of tests/interop/client_driver.py are:
 * `request` (`address`, `code`, `fields`, `body`), `produce` (`namesrv`, `topic`, `body`) and
 * `consume` (`namesrv`, `topic`, `group`, `seconds`), each with `accessKey` and `secretKey`, or without.
 */
public final class AclProbe {
    private static final long TIMEOUT_MILLIS = 20_000;
    private static int clients;

    public static void main(String[] arguments) throws Exception {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        PrintStream answers = System.out;
        NettyRemotingClient client = new NettyRemotingClient(new NettyClientConfig());
        client.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject call = JSON.parseObject(line);
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("call", call.get("call"));
            try {
                answer.put("result", result(client, call));
            } catch (Exception error) {
                String cause = error.getCause() == null ? "" : " caused by " + error.getCause();
                answer.put("error", error + cause);
            }
            answers.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue));
            answers.flush();
        }
        System.exit(0);
    }

    private static Object result(NettyRemotingClient client, JSONObject call) throws Exception {
        switch (call.getString("do")) {
            case "request":
                return request(client, call);
            case "produce":
                return produce(call);
            case "consume":
                return consume(call);
            default:
                throw new IllegalArgumentException(call.getString("do"));
        }
    }

    private static RPCHook hook(JSONObject call) {
        String accessKey = call.getString("accessKey");
        return accessKey == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, call.getString("secretKey")));
    }

    private static Object request(NettyRemotingClient client, JSONObject call) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(call.getIntValue("code"), null);
        HashMap<String, String> fields = new HashMap<>();
        for (Map.Entry<String, Object> field : call.getJSONObject("fields").entrySet()) {
            fields.put(field.getKey(), field.getValue().toString());
        }
        request.setExtFields(fields);
        String body = call.getString("body");
        if (body != null) {
            request.setBody(body.getBytes(StandardCharsets.UTF_8));
        }
        RPCHook hook = hook(call);
        if (hook != null) {
            hook.doBeforeRequest(call.getString("address"), request);
        }
        RemotingCommand response = client.invokeSync(call.getString("address"), request, TIMEOUT_MILLIS);
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("code", response.getCode());
        result.put("remark", response.getRemark());
        result.put("body", response.getBody() == null ? null : new String(response.getBody(), StandardCharsets.UTF_8));
        return result;
    }

    private static Object produce(JSONObject call) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("probe-producers", hook(call));
        producer.setNamesrvAddr(call.getString("namesrv"));
        producer.setInstanceName("probe" + ++clients);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout((int) TIMEOUT_MILLIS);
        producer.start();
        try {
            byte[] body = call.getString("body").getBytes(StandardCharsets.UTF_8);
            return producer.send(new Message(call.getString("topic"), body)).getSendStatus().toString();
        } finally {
            producer.shutdown();
        }
    }

    private static Object consume(JSONObject call) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(call.getString("group"), hook(call), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(call.getString("namesrv"));
        consumer.setInstanceName("probe" + ++clients);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(call.getString("topic"), "*");
        CountDownLatch arrived = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            arrived.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            return arrived.await(call.getLongValue("seconds"), TimeUnit.SECONDS);
        } finally {
            consumer.shutdown();
        }
    }
}
