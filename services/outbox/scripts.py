"""The Lua scripts of the claims. Redis runs each as one atomic step.

Invariant: every script first checks that this Redis is still the trusted one, so one that lost its memory gives no
claim and sets no mark. All keys of a partition share a hash tag and are declared, as Redis Cluster requires. Times are
milliseconds of Redis' own clock (TIME), except a mark's `at_ms`. README.md describes the keys.

A server is the trusted one while both of these are unchanged:
- `run_id` is new at every start, and a replica that is promoted has another one.
- `master_replid` is new at every promotion. A master that followed another one for a while keeps its run_id, but may
  have lost data. A master that gets its first replica changes it as well, without need.
"""

from typing import Final

_TRUST: Final = """
-- KEYS: 1 trust, 2 rebuild, then the effects'.
-- ARGV: 1 producer_id, 2 producer_epoch, 3 incarnation (or a rebuild's nonce), then each script's own.
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

-- Why the caller may not go on, or nothing
local function refusal()
  local run_id, replication_id = server()
  if not run_id then
    return 'replica'
  end
  local trust = redis.call('HMGET', KEYS[1], 'token', 'run_id', 'replication_id', 'incarnation')
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
  end
end

-- The same during a rebuild, before there is trust
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
end
"""
_TRUSTED: Final = f"""{_TRUST}
local why = refusal()
if why then
  return {{why}}
end
"""
_REBUILDING: Final = f"""{_TRUST}
local why = rebuild_refusal()
if why then
  return {{why}}
end
"""

CHECK: Final = f"""{_TRUSTED}
return {{'ok', whole(now_ms())}}
"""
"""Returns ok and the time."""

ENTER: Final = f"""{_TRUST}
-- ARGV: 4 how long the rebuild that may have to follow can be waited for
local run_id, replication_id = server()
if not run_id then
  return {{'replica'}}
elseif fenced() then
  return {{'fenced'}}
end
local memory = redis.call('INFO', 'memory')
local policy = string.match(memory, 'maxmemory_policy:([%a-]+)')
if policy ~= 'noeviction' and string.match(memory, 'maxmemory:(%d+)') ~= '0' then
  return {{'evicting', policy}}
end
local trust = redis.call('HMGET', KEYS[1], 'run_id', 'replication_id', 'incarnation')
if trust[1] ~= run_id or trust[2] ~= replication_id then
  -- Ends the rebuild of a predecessor that does not know yet that it is one. (While there is trust, there is none.)
  redis.call('SET', KEYS[2], token .. '||', 'PX', ARGV[4])
  return {{'ok', whole(now_ms()), ''}}
end
redis.call('HSET', KEYS[1], 'token', token)
return {{'ok', whole(now_ms()), trust[3]}}
"""
"""Returns ok, the time and the incarnation in force, empty for none; or evicting and the policy."""

CLAIM: Final = f"""{_TRUSTED}
-- ARGV: 4 not after, 5 lease, 6 retention, 7 owner; then for each effect mode, reopen_revision, resends,
-- resend_if_new, resend_if_again (0 or 1), void
local now = now_ms()
if now > tonumber(ARGV[4]) then
  return {{'late'}}
end
local reply = {{'ok', whole(now)}}
for i = 3, #KEYS do
  local at = 6 * i - 10
  local keyless, reopen, resends = ARGV[at] == 'keyless', tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local if_new, if_again, void = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4]), ARGV[at + 5]
  local value, status, base, given = redis.call('GET', KEYS[i]), 'new', reopen, true
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
      resends = math.max(resends, tonumber(made))
      status, base = 'retaken|' .. whole(resends), math.max(reopen, tonumber(held_base))
      resends = resends + if_again
    end
  elseif value then
    local revision, counted = string.match(value, '^[fd]|%d+|%d+|(%d+)|(%d+)')
    given, kind = reopen > 0 and tonumber(revision) == reopen, 'b'
    status = (given and 'reopened|' or 'known|') .. value
    resends = given and math.max(resends, tonumber(counted)) + if_again
  else
    resends = resends + if_new
  end
  if given then
    local claim = {{kind, token, whole(now + ARGV[5]), whole(base), whole(resends), ARGV[7]}}
    redis.call('SET', KEYS[i], table.concat(claim, '|'), 'PX', ARGV[6])
  end
  reply[#reply + 1] = status
end
return reply
"""
"""Returns ok, the time and for each effect its status.

That is `new`, `retaken|<resends>`, `held|<ms left>`, `known|<mark>` or `reopened|<mark>`. A claim counts the resend
that may follow: if its owner dies, whoever retakes it learns of it. One that is retaken or reopened, or for a
destination that knows keys, counts as begun.
"""

BEGIN_CALL: Final = f"""{_TRUSTED}
local value = redis.call('GET', KEYS[3])
if not own(value) then
  return {{'lost', KEYS[3]}}
end
redis.call('SET', KEYS[3], 'b' .. string.sub(value, 2), 'KEEPTTL')
return {{'ok', whole(now_ms())}}
"""
"""Turns a claim into one whose call has begun, and returns ok and the time; or lost and the key."""

MARK: Final = f"""{_TRUSTED}
-- ARGV: for each effect its mark, empty to release it, and when that expires
for i = 3, #KEYS do
  if not own(redis.call('GET', KEYS[i])) then
    return {{'lost', KEYS[i]}}
  end
end
for i = 3, #KEYS do
  if ARGV[2 * i - 2] == '' then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], ARGV[2 * i - 2], 'PXAT', ARGV[2 * i - 1])
  end
end
return {{'ok', whole(now_ms())}}
"""
"""Returns ok and the time; or lost and the key of an effect that the caller has no claim on: then nothing was set."""

BEGIN: Final = f"""{_TRUST}
-- ARGV: 4 how long the rebuild may rest between two steps
local run_id, replication_id = server()
if not run_id then
  return {{'replica'}}
elseif fenced() then
  return {{'fenced'}}
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], token .. '|' .. ARGV[3] .. '|' .. run_id .. '|' .. replication_id, 'PX', ARGV[4])
return {{'ok', whole(now_ms())}}
"""
"""Ends the trust and returns ok and the time."""

RESTORE: Final = f"""{_REBUILDING}
-- ARGV: 4 how long the rebuild may rest; then for each effect its mark, its revision and when it expires
for i = 3, #KEYS do
  local mark, revision, expiry = ARGV[3 * i - 4], tonumber(ARGV[3 * i - 3]), ARGV[3 * i - 2]
  local value = redis.call('GET', KEYS[i]) or ''
  local base = tonumber(string.match(value, '^[bc]|[%d.]+|%d+|(%d+)|') or -1)
  local marked = tonumber(string.match(value, '^[sfd]|%d+|%d+|(%d+)') or -1)
  if revision > base and revision >= marked then
    redis.call('SET', KEYS[i], mark, 'PXAT', expiry) -- in the past it deletes
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return {{'ok', whole(now_ms())}}
"""
"""Sets marks and returns ok and the time.

What Redis kept may be newer than Kafka: an effect was reopened at this revision (`base`), or marked with a later one,
and its owner died before it could commit. That stays.
"""

CLOSE: Final = f"""{_REBUILDING}
-- ARGV: 4 the new incarnation
local run_id, replication_id = server()
redis.call('DEL', KEYS[2])
redis.call(
  'HSET', KEYS[1], 'run_id', run_id, 'replication_id', replication_id, 'incarnation', ARGV[4], 'token', token
)
return {{'ok', whole(now_ms())}}
"""
"""Begins the trust and returns ok and the time."""

ACCESS: Final = """
-- KEYS: 1 a key of its own, gone afterwards
local refused = {}

-- Only what the user may not do is told: a replica, or a full memory, is not about rights
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local why = type(reply) == 'table' and reply.err or ''
  if string.find(why, 'NOPERM', 1, true) or string.find(why, 'The user executing the script', 1, true) then
    refused[#refused + 1] = command
  end
end

try('TIME')
try('INFO', 'server')
try('SET', KEYS[1], '', 'PX', 1000)
try('GET', KEYS[1])
try('PEXPIRE', KEYS[1], 1000)
try('DEL', KEYS[1])
try('HSET', KEYS[1], 'field', '')
try('HGET', KEYS[1], 'field')
try('HMGET', KEYS[1], 'field')
try('DEL', KEYS[1])
return refused
"""
"""Tries each command that the other scripts call, and returns those that the user may not call, none if it may all."""
