import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.protocol.AppendEntryRequest;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Nodes of DLedger groups, driven by the commands of tests/support/dledger.py.
 *
 * Commands, all but the last with `id`:
 *   start      group, peers, directory, dataFile, indexFile, heartBeat, minVote, maxVote, batch, preferred
 *   stop
 *   state      role, term, leader, begin, end, committed
 *   append     size, count: bodies of the byte 'j'; the codes of the answers, and the last index,
 *              unless `forget` is set
 *   client     group, peers, and one of append (a text), get (an index), transferee with leader and term
 */
public final class LedgerNodes {
    private static final Map<String, DLedgerServer> NODES = new ConcurrentHashMap<>();

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
        synchronized (System.out) {
            System.out.println(JSON.toJSONString(answer));
            System.out.flush();
        }
    }

    private static Object run(JSONObject call) throws Exception {
        DLedgerServer node = call.containsKey("id") ? NODES.get(call.getString("id")) : null;
        switch (call.getString("do")) {
            case "start":
                start(call);
                return null;
            case "stop":
                NODES.remove(call.getString("id")).shutdown();
                return null;
            case "state":
                return state(node);
            case "append":
                return append(node, call);
            case "client":
                return client(call);
            default:
                throw new IllegalArgumentException(call.getString("do"));
        }
    }

    private static void start(JSONObject call) {
        DLedgerConfig config = new DLedgerConfig();
        config.setStoreType(DLedgerConfig.FILE);
        config.setGroup(call.getString("group"));
        config.setSelfId(call.getString("id"));
        config.setPeers(call.getString("peers"));
        config.setStoreBaseDir(call.getString("directory"));
        config.setMappedFileSizeForEntryData(call.getIntValue("dataFile"));
        config.setMappedFileSizeForEntryIndex(call.getIntValue("indexFile"));
        config.setHeartBeatTimeIntervalMs(call.getIntValue("heartBeat"));
        config.setMinVoteIntervalMs(call.getIntValue("minVote"));
        config.setMaxVoteIntervalMs(call.getIntValue("maxVote"));
        config.setEnableBatchPush(call.getBooleanValue("batch"));
        config.setPreferredLeaderIds(call.getString("preferred"));
        DLedgerServer node = new DLedgerServer(config);
        // It refuses all writes on a nearly full disk.
        ((DLedgerMmapFileStore) node.getDLedgerStore()).setEnableCleanSpaceService(false);
        node.startup();
        NODES.put(config.getSelfId(), node);
    }

    private static Map<String, Object> state(DLedgerServer node) {
        MemberState member = node.getMemberState();
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("role", member.getRole().name());
        state.put("term", member.currTerm());
        state.put("leader", member.getLeaderId());
        state.put("begin", node.getDLedgerStore().getLedgerBeginIndex());
        state.put("end", node.getDLedgerStore().getLedgerEndIndex());
        state.put("committed", node.getDLedgerStore().getCommittedIndex());
        return state;
    }

    private static Object append(DLedgerServer node, JSONObject call) throws Exception {
        byte[] body = new byte[call.getIntValue("size")];
        Arrays.fill(body, (byte) 'j');
        List<CompletableFuture<AppendEntryResponse>> waiting = new ArrayList<>();
        for (int i = 0; i < call.getIntValue("count"); i++) {
            AppendEntryRequest request = new AppendEntryRequest();
            request.setGroup(node.getMemberState().getGroup());
            request.setRemoteId(node.getMemberState().getSelfId());
            request.setBody(body);
            waiting.add(node.handleAppend(request));
        }
        if (call.getBooleanValue("forget")) {
            return null;
        }
        Map<String, Integer> codes = new LinkedHashMap<>();
        long last = -1;
        for (CompletableFuture<AppendEntryResponse> each : waiting) {
            AppendEntryResponse response = each.get(20, TimeUnit.SECONDS);
            codes.merge(String.valueOf(response.getCode()), 1, Integer::sum);
            last = Math.max(last, response.getIndex());
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("codes", codes);
        result.put("last", last);
        return result;
    }

    private static Object client(JSONObject call) {
        DLedgerClient client = new DLedgerClient(call.getString("group"), call.getString("peers"));
        client.startup();
        try {
            if (call.containsKey("append")) {
                return client.append(call.getString("append").getBytes(StandardCharsets.UTF_8)).getCode();
            }
            if (call.containsKey("get")) {
                GetEntriesResponse response = client.get(call.getLongValue("get"));
                return response.getEntries() == null || response.getEntries().isEmpty()
                    ? response.getCode()
                    : new String(response.getEntries().get(0).getBody(), StandardCharsets.UTF_8);
            }
            return client.leadershipTransfer(call.getString("leader"), call.getString("transferee"),
                call.getLongValue("term")).getCode();
        } finally {
            client.shutdown();
        }
    }
}
