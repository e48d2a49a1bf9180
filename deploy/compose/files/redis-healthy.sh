#!/bin/sh
# Signs in as the user that may ask whether Redis answers, by its password and Redis' own certificate.
REDISCLI_AUTH=$(cat /run/once/operator.password) && export REDISCLI_AUTH
redis-cli -h redis -p 6379 --user operator --no-auth-warning \
    --tls --cacert /run/once/authority.pem --cert /run/once/redis.pem --key /run/once/redis.pem ping | grep -q PONG
