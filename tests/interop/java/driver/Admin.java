import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator does to a group while its consumers run. */
final class Admin {
    static List<Object> resetOffset(JSONObject call) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        Driver.configure(admin, call);
        admin.start();
        try {
            List<Object> moved = new ArrayList<>();
            admin.resetOffsetByTimestamp(call.getString("topic"), call.getString("group"), call.getLongValue("timestamp"), true)
                .forEach((queue, offset) -> moved.add(List.of(queue.getQueueId(), offset)));
            return moved;
        } finally {
            admin.shutdown();
        }
    }
}
