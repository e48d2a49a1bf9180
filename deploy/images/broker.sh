#!/bin/sh
# Starts one broker: its storage is formatted once, for the cluster whose id is among its credentials.
# Nothing of the image but its jars and its Java is used, so what runs is what the properties say.
# $1 is server.properties; HEAP the size of the heap, as Java takes it, and JAVA_MORE further options of Java.
set -eu
java_options="-cp /opt/kafka/libs/* -Dlog4j2.configurationFile=/etc/once/log4j2.xml -Dlog4j2.disableJmx=true"
set -f # the asterisk is for Java
data=$(sed -n 's/^log.dirs=//p' "$1")
if [ ! -f "$data/meta.properties" ]; then
    # One word: an id may begin with a dash
    java $java_options -XX:TieredStopAtLevel=1 -Xmx256m kafka.tools.StorageTool format "--cluster-id=$(cat /run/once/cluster.id)" --config "$1"
fi
exec java $java_options $JAVA_MORE "-Xms$HEAP" "-Xmx$HEAP" -Djava.awt.headless=true -XX:+ExitOnOutOfMemoryError \
    -javaagent:/opt/once/agent.jar=0.0.0.0:9404:/opt/once/jmx.yml kafka.Kafka "$1"
