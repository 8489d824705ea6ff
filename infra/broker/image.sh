#!/usr/bin/env bash
# Make a container image that takes the same settings as the official apache/kafka one, on a machine
# that reaches no image registry: a small Debian with Java, the pinned jars, one layer.
# Needs root, debootstrap, Maven and a Docker engine.
#
#   infra/broker/image.sh [NAME]        default: surefoot/kafka-local:<the Kafka version in pom.xml>
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
version="$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$here/pom.xml")"
image="${1:-surefoot/kafka-local:$version}"
root="$(mktemp -d)"
trap 'rm -rf --one-file-system "$root"' EXIT

debootstrap --variant=minbase --include=openjdk-17-jre-headless bookworm "$root"
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man}

mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$root/opt/kafka/libs"
(export LC_ALL=C && cd "$root/opt/kafka/libs" && sha512sum -- *.jar | diff "$here/jars.sha512" -)

# Kafka's own wrapper turns KAFKA_* variables into server.properties and formats the storage, as it
# does in the official image; it wants these three files for its defaults.
mkdir -p "$root"/etc/kafka/docker "$root"/mnt/shared/config "$root"/opt/kafka/config
touch "$root/etc/kafka/docker/server.properties"
cat >"$root/etc/kafka/docker/log4j2.yaml" <<'YAML'
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        - ref: STDOUT
    Logger:
      - name: org.apache.kafka.common.utils
        level: INFO
YAML
cp "$root/etc/kafka/docker/log4j2.yaml" "$root/etc/kafka/docker/tools-log4j2.yaml"
cat >"$root/etc/kafka/docker/run" <<'RUN'
#!/bin/sh
set -e
export CLUSTER_ID="${CLUSTER_ID:-5L6g3nShT-eMCtK--X86sw}"
java -cp '/opt/kafka/libs/*' kafka.docker.KafkaDockerWrapper setup \
    -D /etc/kafka/docker -M /mnt/shared/config -F /opt/kafka/config
# shellcheck disable=SC2086  (several options in one variable, as in Kafka's own scripts)
exec java -XX:+UseSerialGC ${KAFKA_HEAP_OPTS:--Xmx512m} \
    -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.yaml \
    -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
RUN
chmod +x "$root/etc/kafka/docker/run"

tar --create --directory "$root" --one-file-system . |
    docker import --change 'CMD ["/etc/kafka/docker/run"]' --change 'EXPOSE 9092' - "$image" >/dev/null
echo "$image"
