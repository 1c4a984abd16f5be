#!/bin/sh
# Compile and run the tests with the JDK and the JUnit of Debian (default-jdk-headless, junit5), without Maven.
set -eu
cd "$(dirname "$0")"
built=${BUILD:-build}
library=${JUNIT:-/usr/share/java}
jars=$library/junit-jupiter-api.jar:$library/junit-jupiter-params.jar:$library/junit-jupiter-engine.jar
jars=$jars:$library/junit-platform-commons.jar:$library/junit-platform-engine.jar:$library/junit-platform-launcher.jar
jars=$jars:$library/junit-platform-console.jar:$library/junit-platform-reporting.jar
jars=$jars:$library/apiguardian-api.jar:$library/opentest4j.jar:$library/picocli.jar:$library/univocity-parsers.jar
mkdir -p "$built"
find src -name '*.java' > "$built/sources"
javac --release 17 -Xlint:all,-path,-serial,-try -Werror -encoding UTF-8 -d "$built/classes" -cp "$jars" "@$built/sources"
exec java -cp "$built/classes:$jars" org.junit.platform.console.ConsoleLauncher \
    --scan-classpath "$built/classes" --disable-banner --disable-ansi-colors --details tree --fail-if-no-tests "$@"
