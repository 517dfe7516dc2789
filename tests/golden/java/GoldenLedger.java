import com.alibaba.fastjson.JSON;
import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.MemberState;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.store.file.DLedgerMmapFileStore;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Writes and reads the files of a DLedger node, without a network.
 *
 * Arguments: directory (storeBaseDir), data file size, index file size, steps. A step is words
 * joined by colons:
 *   lead:T           become the leader of term T (and persist term and vote)
 *   follow:T         become a follower in term T, of leader n1
 *   append:S[:N]     append N entries with bodies of S bytes, as the leader
 *   accept:S:P       append one entry with a body of S bytes at position P, as a follower
 *   cut:I            a TRUNCATE push of the stored entry I: everything after it goes
 *   replace:I:P:S    a TRUNCATE push of another entry: index, position, bytes of the body
 *   commit:I         entries up to I are committed
 *   restart          stop and start
 *   dump             print the state and all entries
 * Byte k of the body of entry I in term T is I * 31 + T * 7 + k.
 */
public final class GoldenLedger {
    private final DLedgerConfig config = new DLedgerConfig();
    private MemberState member;
    private DLedgerMmapFileStore store;

    public static void main(String[] arguments) {
        try {
            run(new GoldenLedger(), arguments);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);  // its threads keep the process alive
        }
        System.exit(0);
    }

    private static void run(GoldenLedger ledger, String[] arguments) {
        ledger.config.setStoreType(DLedgerConfig.FILE);
        ledger.config.setSelfId("n0");
        ledger.config.setGroup("golden");
        ledger.config.setPeers("n0-localhost:1;n1-localhost:2;n2-localhost:3");
        ledger.config.setStoreBaseDir(arguments[0]);
        ledger.config.setMappedFileSizeForEntryData(Integer.parseInt(arguments[1]));
        ledger.config.setMappedFileSizeForEntryIndex(Integer.parseInt(arguments[2]));
        ledger.start();
        for (int at = 3; at < arguments.length; at++) {
            ledger.run(arguments[at].split(":"));
        }
        ledger.store.shutdown();
    }

    private void start() {
        member = new MemberState(config);
        store = new DLedgerMmapFileStore(config, member);
        // It refuses all writes on a nearly full disk.
        store.setEnableCleanSpaceService(false);
        store.startup();
    }

    private void run(String[] step) {
        switch (step[0]) {
            case "lead":
                enter(Long.parseLong(step[1]));
                member.setCurrVoteFor("n0");
                member.changeToLeader(member.currTerm());
                break;
            case "follow":
                enter(Long.parseLong(step[1]));
                member.changeToFollower(member.currTerm(), "n1");
                break;
            case "append":
                int count = step.length > 2 ? Integer.parseInt(step[2]) : 1;
                for (int i = 0; i < count; i++) {
                    DLedgerEntry entry = new DLedgerEntry();
                    entry.setBody(body(store.getLedgerEndIndex() + 1, member.currTerm(), step[1]));
                    store.appendAsLeader(entry);
                }
                break;
            case "accept":
                store.appendAsFollower(entry(store.getLedgerEndIndex() + 1, step[2], step[1]),
                    member.currTerm(), "n1");
                break;
            case "cut":
                store.truncate(store.get(Long.parseLong(step[1])), member.currTerm(), "n1");
                break;
            case "replace":
                store.truncate(entry(Long.parseLong(step[1]), step[2], step[3]), member.currTerm(),
                    "n1");
                break;
            case "commit":
                store.updateCommittedIndex(member.currTerm(), Long.parseLong(step[1]));
                break;
            case "restart":
                store.shutdown();
                start();
                break;
            case "dump":
                dump();
                break;
            default:
                throw new IllegalArgumentException(step[0]);
        }
    }

    private void enter(long term) {
        member.changeToCandidate(Math.max(term, member.currTerm()));
        while (member.currTerm() < term) {
            member.nextTerm();
        }
    }

    private DLedgerEntry entry(long index, String position, String size) {
        DLedgerEntry entry = new DLedgerEntry();
        entry.setMagic(DLedgerMmapFileStore.CURRENT_MAGIC);
        entry.setIndex(index);
        entry.setTerm(member.currTerm());
        entry.setPos(Long.parseLong(position));
        entry.setBody(body(index, member.currTerm(), size));
        entry.setSize(entry.computeSizeInBytes());
        return entry;
    }

    private static byte[] body(long index, long term, String size) {
        byte[] body = new byte[Integer.parseInt(size)];
        for (int k = 0; k < body.length; k++) {
            body[k] = (byte) (index * 31 + term * 7 + k);
        }
        return body;
    }

    private void dump() {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("begin", store.getLedgerBeginIndex());
        state.put("end", store.getLedgerEndIndex());
        state.put("endTerm", store.getLedgerEndTerm());
        state.put("written", store.getWritePos());
        state.put("committed", store.getCommittedIndex());
        state.put("committedPos", store.getCommittedPos());
        state.put("term", member.currTerm());
        state.put("vote", member.currVoteFor());
        System.out.println(JSON.toJSONString(state));
        for (long i = store.getLedgerBeginIndex(); i >= 0 && i <= store.getLedgerEndIndex(); i++) {
            DLedgerEntry stored = store.get(i);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("index", stored.getIndex());
            line.put("term", stored.getTerm());
            line.put("pos", stored.getPos());
            line.put("size", stored.getSize());
            line.put("body", Golden.hex(stored.getBody()));
            System.out.println(JSON.toJSONString(line));
        }
    }
}
