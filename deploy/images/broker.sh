#!/bin/sh
# Starts one broker: its storage is formatted once, for the cluster whose id is among its credentials.
# Nothing of the image but its jars and its Java is used, so what runs is what the properties say.
# $1 is the server.properties of all brokers, and $2 this one's number, which replaces ${NODE_ID} in it. HEAP is the size
# of the heap, as Java takes it; JAVA_MORE has further options of Java.
set -eu
java_options="-cp /opt/kafka/libs/* -Dlog4j2.configurationFile=/etc/once/log4j2.xml -Dlog4j2.disableJmx=true"
set -f # the asterisk is for Java
properties=$HOME/server.properties
sed "s/\${NODE_ID}/$2/g" "$1" > "$properties"
data=$(sed -n 's/^log.dirs=//p' "$properties")
if [ ! -f "$data/meta.properties" ]; then
    # One word: an id may begin with a dash
    java $java_options -XX:TieredStopAtLevel=1 -Xmx256m kafka.tools.StorageTool format "--cluster-id=$(cat /run/once/cluster.id)" --config "$properties"
fi
exec java $java_options $JAVA_MORE "-Xms$HEAP" "-Xmx$HEAP" -Djava.awt.headless=true -XX:+ExitOnOutOfMemoryError \
    -javaagent:/opt/once/agent.jar=0.0.0.0:9404:/opt/once/jmx.yml kafka.Kafka "$properties"
