// Writes java-partitions.golden: where Kafka's own Java client puts 20 keys in topics of 1, 3, 7, 12 and 100 partitions.
//
//   java -cp "$ONWARD_TEST_KAFKA_LIBS/*" testdata/Partitions.java 127.0.0.1:PORT > testdata/java-partitions.golden
//
// It needs a JDK (17 or later), and a Kafka server that makes no trouble with five more topics. Run with kafka-clients 4.3.1.
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Partitions {
  public static void main(String[] args) throws Exception {
    List<String> keys = new ArrayList<>(List.of("a", "ab", "abc", "abcd", "order-1", "order-2", "4711", "customer/42",
        "ünï", "日本", "ключ", "🎉", " ", "a b", "a\\b", "0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e", "UPPER", "é", "-1"));
    keys.add("k".repeat(255));
    Properties p = new Properties();
    p.put("bootstrap.servers", args[0]);
    int[] counts = {1, 3, 7, 12, 100};
    try (Admin admin = Admin.create(p); Producer<byte[], byte[]> producer =
        new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer())) {
      String run = "java-" + System.nanoTime() + "-";
      List<String> topics = new ArrayList<>();
      for (int n : counts) {
        topics.add(run + n);
        admin.createTopics(List.of(new NewTopic(run + n, n, (short) 1))).all().get();
      }
      for (String key : keys) {
        StringBuilder line = new StringBuilder(key);
        for (String topic : topics) {
          byte[] b = key.getBytes(StandardCharsets.UTF_8);
          line.append('\t').append(producer.send(new ProducerRecord<>(topic, b, b)).get().partition());
        }
        System.out.println(line);
      }
      admin.deleteTopics(topics).all().get();
    }
  }
}
