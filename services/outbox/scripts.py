"""The Lua scripts of the claims. Redis runs each as one atomic step; those of a rebuild are in `rebuild`.

Invariants:
- Every script first checks that this Redis is still the trusted one, so one that lost its memory gives no claim and
  sets no mark. All keys are declared.
- An effect has a claim or a mark, not both. A claim is a key, a mark is a field of a bucket: `keys`.
- Times are milliseconds of Redis' own clock (TIME), except a mark's `at_ms`. A script that finds this clock where its
  caller cannot expect it, or before a time that it has shown, ends the trust: keys may have expired before their time.

A server is the trusted one while both of these are unchanged:
- `run_id` is new at every start, and a replica that is promoted has another one.
- `master_replid` is new at every promotion. A master that followed another one for a while keeps its run_id, but may
  have lost data. A master that gets its first replica changes it as well, without need.
"""

from typing import Final

CLOCK_JUMP_MS: Final = 10_000
"""A clock that moved this much less, or this much more than a call can take, has jumped."""
UNDER_WAY: Final = 2
"""Scripts of one partition. Redis runs one after the other, and each needs a connection."""
PROBE_FIELDS: Final = 128
"""As many fields as a bucket of twice the planned effects has."""

TRUST: Final = f"""
-- KEYS: 1 trust, 2 rebuild, then each script's own; for an effect two, its claim and its mark's bucket.
-- ARGV: 1 producer_id, 2 producer_epoch, 3 incarnation (or a rebuild's nonce), 4 the latest time that the clock may
-- show, then each script's own; an effect's id is its 16 bytes.
local token = ARGV[1] .. '.' .. ARGV[2]

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- run_id and master_replid; nothing for a replica
local function server()
  local replication = redis.call('INFO', 'replication')
  if not string.find(replication, 'role:master', 1, true) then
    return nil
  end
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'), string.match(replication, 'master_replid:(%x+)')
end

-- Whether a later epoch of the same producer_id wrote this. Producer ids themselves have no order: brokers hand them
-- out of blocks of their own, and a transactional.id that expired gets another one.
local function newer(other)
  local producer_id, epoch = string.match(other or '', '^(%d+)%.(%d+)')
  return producer_id == ARGV[1] and tonumber(epoch) > tonumber(ARGV[2])
end

-- Whether this is a claim of the caller's: c is claimed, b is begun
local function own(value)
  return string.match(value or '', '^[bc]|([%d.]+)|') == token
end

local function fenced()
  return newer(redis.call('HGET', KEYS[1], 'token')) or newer(redis.call('GET', KEYS[2]))
end

-- Why the caller may not go on, or nothing; and the time
local function refusal()
  local run_id, replication_id = server()
  if not run_id then
    return 'replica'
  end
  local trust = redis.call('HMGET', KEYS[1], 'token', 'run_id', 'replication_id', 'incarnation', 'seen', 'jumped')
  if not trust[1] then
    return fenced() and 'fenced' or 'flushed'
  elseif newer(trust[1]) then
    return 'fenced'
  elseif trust[2] ~= run_id then
    return 'restarted'
  elseif trust[3] ~= replication_id then
    return 'followed'
  elseif trust[4] ~= ARGV[3] then
    return 'rebuilt'
  elseif trust[1] ~= token then
    return 'fenced'
  elseif trust[6] then
    return 'jumped'
  end
  local now, seen = now_ms(), tonumber(trust[5])
  if now > tonumber(ARGV[4]) or now < seen - {CLOCK_JUMP_MS} then
    redis.call('HSET', KEYS[1], 'jumped', whole(now))
    return 'jumped'
  elseif now - seen >= 1000 then
    redis.call('HSET', KEYS[1], 'seen', whole(now))
  end
  return nil, now
end

-- A number of seven bits a byte, the lowest first (LEB128), and where the next one begins
local function number(mark, at)
  local value, factor = 0, 1
  while true do
    local byte = string.byte(mark, at)
    value = value + byte % 128 * factor
    at, factor = at + 1, factor * 128
    if byte < 128 then
      return value, at
    end
  end
end

-- Revision and resends of a mark
local function counts(mark)
  local _, at = number(mark, 8)
  local revision, resends_at = number(mark, at)
  return revision, (number(mark, resends_at))
end

local function decided_ms(mark)
  local ms = 0
  for i = 2, 7 do
    ms = ms * 256 + string.byte(mark, i)
  end
  return ms
end

-- Remove what has expired from a bucket
local function sweep(bucket, retention, now)
  local entries, expired = redis.call('HGETALL', bucket), {{}}
  for i = 1, #entries, 2 do
    if #expired < 1000 and decided_ms(entries[i + 1]) + retention <= now then
      expired[#expired + 1] = entries[i]
    end
  end
  if #expired > 0 then
    redis.call('HDEL', bucket, unpack(expired))
  end
end

-- Write a mark. Redis expires a bucket with its last entry; one write of sixteen removes the entries before
local function remember(bucket, id, mark, retention, now)
  local added, expiry = redis.call('HSET', bucket, id, mark), whole(decided_ms(mark) + retention)
  local entries = redis.call('HLEN', bucket)
  if entries == 1 then
    redis.call('PEXPIREAT', bucket, expiry)
    return
  end
  redis.call('PEXPIREAT', bucket, expiry, 'GT')
  if added == 1 and entries % 16 == 0 then
    sweep(bucket, retention, now)
  end
end
"""
_TRUSTED: Final = f"""{TRUST}
local why, now = refusal()
if why then
  return {{why}}
end
"""

CHECK: Final = f"""{_TRUSTED}
return {{'ok', whole(now)}}
"""
"""Returns ok and the time."""

ENTER: Final = f"""{TRUST}
-- KEYS: 3 the former layout's trust, 4 a key that exists only within this script
-- ARGV: 5 the earliest time that the clock may show, 6 how long the rebuild that may have to follow can be waited for,
-- 7 number of buckets, 8 retention
local run_id, replication_id = server()
if not run_id then
  return {{'replica'}}
elseif fenced() or newer(redis.call('HGET', KEYS[3], 'token')) then
  return {{'fenced'}}
end
local memory = redis.call('INFO', 'memory')
local policy, limit = string.match(memory, 'maxmemory_policy:([%a-]+)'), string.match(memory, 'maxmemory:(%d+)')
if policy ~= 'noeviction' and limit ~= '0' then
  return {{'evicting', policy}}
end
local now = now_ms()
if now > tonumber(ARGV[4]) or now < tonumber(ARGV[5]) then
  if redis.call('HGET', KEYS[1], 'token') then
    redis.call('HSET', KEYS[1], 'jumped', whole(now))
  end
  return {{'skewed', whole(now)}}
end
local probe = {{}}
for i = 1, {PROBE_FIELDS} do
  probe[2 * i - 1], probe[2 * i] = string.format('%016d', i), string.rep('m', 40)
end
redis.call('HSET', KEYS[4], unpack(probe))
local encoding = redis.call('OBJECT', 'ENCODING', KEYS[4])
redis.call('DEL', KEYS[4])
if encoding ~= 'listpack' then
  return {{'spacious', encoding}}
end
local reply = {{'ok', whole(now), '', '', limit, string.match(memory, 'total_system_memory:(%d+)')}}
local trust = redis.call(
  'HMGET', KEYS[1], 'run_id', 'replication_id', 'incarnation', 'seen', 'jumped', 'buckets', 'retention'
)
local former = redis.call('HMGET', KEYS[3], 'run_id', 'replication_id', 'incarnation')
redis.call('DEL', KEYS[3]) -- an owner of a former version learns of it before its next call
local wrong_clock = trust[5] or (trust[4] and now < trust[4] - {CLOCK_JUMP_MS})
if trust[1] == run_id and trust[2] == replication_id and not wrong_clock then
  redis.call('HSET', KEYS[1], 'token', token)
  reply[3] = trust[3]
  reply[4] = (trust[6] ~= ARGV[7] or tonumber(trust[7]) < tonumber(ARGV[8])) and 'outdated' or ''
else
  -- Ends the rebuild of a predecessor that does not know yet that it is one. (While there is trust, there is none.)
  redis.call('SET', KEYS[2], token .. '||', 'PX', ARGV[6])
end
-- Entering deletes the former trust. So one that is there was made since, by an owner of the former version
if former[1] == run_id and former[2] == replication_id and not wrong_clock then
  reply[3], reply[4] = former[3], 'outdated'
end
return reply
"""
"""Returns ok, the time, the incarnation in force, `outdated`, maxmemory and the machine's memory.

The incarnation is empty for none. `outdated` means that entries are in another layout or expire too early, and have to
be rebuilt first; else it is empty. Or it returns evicting and the policy; skewed and the time; spacious and the
encoding of a bucket.
"""

CLAIM: Final = f"""{_TRUSTED}
-- ARGV: 5 not after, 6 lease, 7 retention, 8 owner; then for each effect its id, mode, reopen_revision, resends,
-- resend_if_new, resend_if_again (0 or 1), void
if now > tonumber(ARGV[5]) then
  return {{'late'}}
end
local reply = {{'ok', whole(now)}}
for i = 3, #KEYS, 2 do
  local at, key, bucket = (i - 1) / 2 * 7 + 2, KEYS[i], KEYS[i + 1]
  local id, keyless = ARGV[at], ARGV[at + 1] == 'keyless'
  local reopen, resends = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local if_new, if_again, void = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), ARGV[at + 6]
  local value, status, base, given = redis.call('GET', key), 'new', reopen, true
  local mark = not value and redis.call('HGET', bucket, id)
  local kind = keyless and 'c' or 'b'
  local was, holder, lease_until, held_base, made = string.match(value or '', '^([bc])|([%d.]+)|(%d+)|(%d+)|(%d+)|')
  if was and (holder == void or was == 'c' and keyless and holder ~= token) then
    resends = resends + if_new -- its owner never began a call, or wrote down that it made none, and is fenced now
  elseif was then
    local left = tonumber(lease_until) - now
    kind = 'b'
    if keyless and holder ~= token and left > 0 then
      status, given = 'held|' .. whole(left), false
    else
      if holder ~= token then -- an owner knows its own calls
        resends = math.max(resends, tonumber(made))
      end
      status, base = 'retaken|' .. whole(resends), math.max(reopen, tonumber(held_base))
      resends = resends + if_again
    end
  elseif mark then
    local revision, counted = counts(mark)
    given, kind = reopen > 0 and string.sub(mark, 1, 1) ~= 's' and revision == reopen, 'b'
    status = (given and 'reopened|' or 'known|') .. mark
    resends = given and math.max(resends, counted) + if_again
  else
    resends = resends + if_new
  end
  if given then
    local claim = {{kind, token, whole(now + ARGV[6]), whole(base), whole(resends), ARGV[8]}}
    redis.call('SET', key, table.concat(claim, '|'), 'PX', ARGV[7])
    if mark then
      redis.call('HDEL', bucket, id)
    end
  end
  reply[#reply + 1] = status
end
return reply
"""
"""Returns ok, the time and for each effect its status.

That is `new`, `retaken|<resends>`, `held|<ms left>`, `known|<mark>` or `reopened|<mark>`. A claim counts the resend
that may follow: if its owner dies, the new owner learns of it. A claim that is retaken or reopened, or for a
destination that knows keys, counts as begun.
"""

BEGIN_CALL: Final = f"""{_TRUSTED}
local value = redis.call('GET', KEYS[3])
if not own(value) then
  return {{'lost', KEYS[3]}}
end
redis.call('SET', KEYS[3], 'b' .. string.sub(value, 2), 'KEEPTTL')
return {{'ok', whole(now)}}
"""
"""Turns a claim into one whose call has begun, and returns ok and the time; or lost and the key."""

MARK: Final = f"""{_TRUSTED}
-- ARGV: 5 retention, then for each effect its id and its mark, empty to release it
local retention = tonumber(ARGV[5])
for i = 3, #KEYS, 2 do
  if not own(redis.call('GET', KEYS[i])) then
    return {{'lost', KEYS[i]}}
  end
end
for i = 3, #KEYS, 2 do
  redis.call('DEL', KEYS[i])
  if ARGV[i + 4] ~= '' then
    remember(KEYS[i + 1], ARGV[i + 3], ARGV[i + 4], retention, now)
  end
end
return {{'ok', whole(now)}}
"""
"""Returns ok and the time; or lost and the key of an effect that the caller has no claim on: then nothing was set."""
