import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What SQL92 expressions make of messages' properties.
 *
 * <p>Arguments: INPUT OUTPUT, both JSON. The result of an expression has a letter for each set of
 * properties: T(rue), F(alse), N(ull), X for an exception; it is empty when the expression is refused.
 */
public final class GoldenSql {
    private GoldenSql() {
    }

    public static void main(String[] arguments) throws Exception {
        JSONObject input = JSON.parseObject(Files.readString(Path.of(arguments[0])));
        List<Map<String, String>> sets = new ArrayList<>();
        for (Object set : input.getJSONArray("sets")) {
            Map<String, String> properties = new HashMap<>();
            ((JSONObject) set).forEach((name, value) -> properties.put(name, (String) value));
            sets.add(properties);
        }
        Map<String, Object> results = new LinkedHashMap<>();
        JSONArray expressions = input.getJSONArray("expressions");
        for (int number = 0; number < expressions.size(); number++) {
            String text = expressions.getString(number);
            results.put(text, results(text, sets));
        }
        Map<String, Object> output = new LinkedHashMap<>();
        output.put("sets", sets);
        output.put("results", results);
        Files.writeString(Path.of(arguments[1]), Golden.pretty(output));
    }

    private static String results(String text, List<Map<String, String>> sets) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Exception refused) {
            return "";
        }
        StringBuilder letters = new StringBuilder();
        for (Map<String, String> properties : sets) {
            letters.append(letter(expression, properties));
        }
        return letters.toString();
    }

    private static char letter(Expression expression, Map<String, String> properties) {
        try {
            Object result = expression.evaluate(new MessageEvaluationContext(properties));
            return result == null ? 'N' : (Boolean) result ? 'T' : 'F';
        } catch (Exception error) {
            return 'X';
        }
    }
}
