import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;

/** What the capture programs share: readable JSON, hex, and a header's fields in a steady order. */
final class Golden {
    private Golden() {
    }

    static String pretty(Object value) {
        return JSON.toJSONString(value, SerializerFeature.PrettyFormat, SerializerFeature.MapSortField,
            SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect) + "\n";
    }

    static String hex(byte[] bytes) {
        return java.util.HexFormat.of().formatHex(bytes);
    }

    static List<Field> fields(Class<?> type) {
        List<Field> fields = new ArrayList<>();
        for (Class<?> step = type; step != Object.class; step = step.getSuperclass()) {
            for (Field field : step.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    fields.add(field);
                }
            }
        }
        return fields;
    }
}
