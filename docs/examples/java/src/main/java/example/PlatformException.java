package example;

import java.time.Duration;
import java.util.Optional;

/** A call without a success. Its kind says whether the platform may have acted. */
public abstract sealed class PlatformException extends Exception {

    private PlatformException(String message, Throwable cause) {
        super(message, cause);
    }

    /** The platform cannot have seen the request. */
    public static final class NotSent extends PlatformException {
        NotSent(String message, Throwable cause) {
            super(message, cause);
        }
    }

    /** The platform has answered no: the operation had no effect. */
    public static sealed class Refused extends PlatformException {
        private final String code;

        Refused(String code, String message) {
            super(code + ": " + message, null);
            this.code = code;
        }

        public String code() {
            return code;
        }
    }

    /** The platform limits requests (HTTP 429): the operation had no effect. */
    public static final class Throttled extends Refused {
        private final Duration retryAfter;

        Throttled(Duration retryAfter) {
            super("429", "too many requests");
            this.retryAfter = retryAfter;
        }

        /** The time that the platform asks to wait. */
        public Optional<Duration> retryAfter() {
            return Optional.ofNullable(retryAfter);
        }
    }

    /** No readable answer came: the platform may have done it. */
    public static final class OutcomeUnknown extends PlatformException {
        OutcomeUnknown(String message, Throwable cause) {
            super(message, cause);
        }
    }
}
