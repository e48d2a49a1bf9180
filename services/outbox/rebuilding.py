"""The Lua scripts of a rebuild: what Kafka remembers is written into Redis, and trusted from then on.

Entries that Redis kept may be newer than Kafka: an effect was reopened at this revision, or marked with a later one,
and its owner died before it could commit. They stay. Those of another layout are moved: strings under the former names,
and buckets of another number.
"""

from typing import Final

from services.outbox.scripts import TRUST

_CHECKED: Final = f"""{TRUST}
-- Why the rebuild may not go on, or nothing; and the time. There is no trust yet
local function rebuild_refusal()
  local run_id, replication_id = server()
  if not run_id then
    return 'replica'
  elseif fenced() then
    return 'fenced'
  end
  local rebuild = redis.call('GET', KEYS[2])
  local own = token .. '|' .. ARGV[3] .. '|'
  if not rebuild then
    return 'flushed'
  elseif string.sub(rebuild, 1, #own) ~= own then
    return 'rebuilt'
  elseif rebuild ~= own .. run_id .. '|' .. replication_id then
    return 'restarted'
  end
  local now = now_ms()
  if now > tonumber(ARGV[4]) then
    redis.call('DEL', KEYS[2])
    return 'jumped'
  end
  return nil, now
end

local why, now = rebuild_refusal()
if why then
  return {{why}}
end
"""

BEGIN: Final = f"""{TRUST}
-- KEYS: 3 the former layout's trust
-- ARGV: 5 how long the rebuild may rest between two steps
local run_id, replication_id = server()
if not run_id then
  return {{'replica'}}
elseif fenced() then
  return {{'fenced'}}
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.call('SET', KEYS[2], token .. '|' .. ARGV[3] .. '|' .. run_id .. '|' .. replication_id, 'PX', ARGV[5])
return {{'ok', whole(now_ms())}}
"""
"""Ends the trust and returns ok and the time."""

FIND: Final = f"""{_CHECKED}
-- ARGV: 5 cursor, 6 pattern of keys, 7 how many keys to look at
local found = redis.call('SCAN', ARGV[5], 'MATCH', ARGV[6], 'COUNT', ARGV[7])
local reply = {{'ok', whole(now), found[1]}}
for _, key in ipairs(found[2]) do
  reply[#reply + 1] = key
end
return reply
"""
"""Returns ok, the time, the next cursor, 0 for none, and keys."""

READ_FORMER: Final = f"""{_CHECKED}
local reply = {{'ok', whole(now)}}
for i = 3, #KEYS do
  reply[#reply + 1] = redis.call('GET', KEYS[i]) or ''
end
return reply
"""
"""Returns ok, the time and the claim or mark of each key of the former layout, empty if it has expired."""

READ_BUCKET: Final = f"""{_CHECKED}
local reply = redis.call('HGETALL', KEYS[3])
table.insert(reply, 1, whole(now))
table.insert(reply, 1, 'ok')
return reply
"""
"""Returns ok, the time and ids and marks of a bucket, in turns."""

RESTORE: Final = f"""{_CHECKED}
-- ARGV: 5 how long the rebuild may rest, 6 retention; then for each effect its id and its mark
local retention = tonumber(ARGV[6])
for i = 3, #KEYS, 2 do
  local id, mark = ARGV[i + 4], ARGV[i + 5]
  local revision, base, marked = counts(mark), -1, -1
  local claim = redis.call('GET', KEYS[i])
  local known = redis.call('HGET', KEYS[i + 1], id)
  if claim then
    base = tonumber(string.match(claim, '^[bc]|[%d.]+|%d+|(%d+)|'))
  end
  if known then
    marked = counts(known)
  end
  if revision > base and revision >= marked and decided_ms(mark) + retention > now then
    if claim then
      redis.call('DEL', KEYS[i])
    end
    remember(KEYS[i + 1], id, mark, retention, now)
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {{'ok', whole(now)}}
"""
"""Sets marks that have not expired, and returns ok and the time. A mark does not replace a newer entry."""

ADOPT: Final = f"""{_CHECKED}
-- ARGV: 5 retention; then for each effect its id and a claim of the former layout
for i = 3, #KEYS, 2 do
  local id, claim = ARGV[i + 3], ARGV[i + 4]
  local base = tonumber(string.match(claim, '^[bc]|[%d.]+|%d+|(%d+)|'))
  local held, known = redis.call('GET', KEYS[i]), redis.call('HGET', KEYS[i + 1], id)
  -- A call that may have been made counts more than one that was only claimed
  if not (held and string.sub(held, 1, 1) == 'b') and not (known and counts(known) > base) then
    redis.call('HDEL', KEYS[i + 1], id)
    redis.call('SET', KEYS[i], claim, 'PX', ARGV[5])
  end
end
return {{'ok', whole(now)}}
"""
"""Takes claims over, and returns ok and the time."""

DROP: Final = f"""{_CHECKED}
for i = 3, #KEYS do
  redis.call('DEL', KEYS[i])
end
return {{'ok', whole(now)}}
"""
"""Deletes keys whose entries have been moved, and returns ok and the time."""

CLOSE: Final = f"""{_CHECKED}
-- ARGV: 5 the new incarnation, 6 number of buckets, 7 retention
local run_id, replication_id = server()
redis.call('DEL', KEYS[2])
redis.call(
  'HSET', KEYS[1], 'run_id', run_id, 'replication_id', replication_id, 'incarnation', ARGV[5], 'token', token,
  'buckets', ARGV[6], 'retention', ARGV[7], 'seen', whole(now)
)
return {{'ok', whole(now)}}
"""
"""Begins the trust and returns ok and the time."""
