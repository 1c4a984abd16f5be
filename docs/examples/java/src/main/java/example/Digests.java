package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;

/** MD5, with which the platform signs. */
final class Digests {

    private Digests() {}

    static String md5(String text) {
        return md5(text.getBytes(UTF_8));
    }

    static String md5(byte[] data) {
        try {
            return HexFormat.of().withUpperCase().formatHex(MessageDigest.getInstance("MD5").digest(data));
        } catch (NoSuchAlgorithmException impossible) { // every Java platform has MD5
            throw new IllegalStateException(impossible);
        }
    }
}
