"""The one script that assigns permits, its questions and its answers: for limiters, budgets and windows of the calendar alike.

A request is a tuple of amounts, one for each dimension, which is a rate with a burst, or a window. A limiter's are slots, (1, ...) each,
a budget's are reservations. Equal requests are a run, which the script answers in closed form, with one key, in one round trip, and by the
server's clock alone.

The value of a key is text: ``aiorate/2``, the kind of limit, and numbers. Durations are in us and relative to ``written``, so only how far
the clock moves matters. Edges of windows are absolute.

* ``life``: when the value was made. What a client remembers decides nothing within one life, and restores what was lost in another.
* ``written``; ``hush``: how long a pause goes on.
* ``claim`` and ``lasts``: the client for which others leave room, and for how long. ``latest``: the latest booking.
* ``near``: how long an answer takes to the nearest process that asks. ``count``: of answers in this life.
* of each rate ``ahead``: when its bucket is full again, and ``full``: when it was full last; what was granted before cannot come back.
* of each window ``used began ends``, ``seats`` and ``patience`` for the next one, and what was kept of these for this one: ``due`` seats
  of ``share`` permits, until ``hold``.

The number in the first word is the version. Change it whenever the value changes in any way: a release that meets another version leaves
it alone, and answers with an error.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha1
from itertools import chain
from struct import pack as pack_numbers
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.slots import Part


FORM = "aiorate/2"
MOST = 1e16  # a longer duration counts for this one: 317 years, exact to 2 us
MOST_RUNS = 100  # in one question
HEAD, OF_RATE, OF_WINDOW = 8, 2, 8  # numbers of a value

ASSIGN = """\
  local pause, horizon, reach, within, age, client, oldest, took, seat, gone, margin, dims = unpack(w, 1, 12)
  local life, written, hush, claim, lasts, latest, near, count = now, now, 0, 0, 0, 0, took, 0
  if kept then life, written, hush, claim, lasts, latest, near, count = unpack(kept, 1, 8) end
  if told and kept and told[1] == life and told[8] <= count then told = nil end
  local passed = max(0, now - written) -- a clock that went back has not moved
  local still = -1e18 -- nothing accrues before a pause is over, but a debt is paid
  if hush > 0 then still = min(hush - passed, 0) end
  hush, lasts, latest = hush - passed, lasts - passed, max(latest - passed, 0)
  if took >= 0 and near < 0 then near = took end
  if took >= 0 then near = min(took, near + passed / 4) end
  if told then hush, latest = max(hush, told[3] - age), max(latest, told[6] - age) end
  if pause == 0 then hush = 0 end
  hush = min(max(hush, pause, 0), 1e16)
  if lasts <= 0 then claim, lasts = 0, 0 end
  -- A process far from the store has to book further ahead, but not so far that those near it have nothing left.
  local trip, asked = max(took, 0), horizon
  horizon = max(horizon, trip)
  if near >= 0 then horizon = sqrt(max(asked, near) * horizon) end

  local every, burst, states, room, at, lag = {}, {}, {}, {}, 8, 0
  for j = 1, dims do
    local e = 5 + 7 * j
    local more = w[e + 3]
    every[j], burst[j], room[j] = w[e + 1], w[e + 2], nil
    if every[j] > 0 then
      local ahead, full = 0, 0
      if kept then
        ahead, full = max(kept[at + 1] - passed, min(kept[at + 1], (burst[j] - 1) * every[j]) + still), kept[at + 2] - passed
      end
      if told and told[at + 1] - age > ahead then
        ahead = told[at + 1] - age
        if not kept then ahead = ahead + horizon end
      end
      if ahead <= 0 then ahead, full = 0, 0 end
      if more > 0 then ahead = ahead + more * every[j] end
      if more < 0 and -oldest >= full and (gone == 0 or same) then ahead = max(ahead + more * every[j], 0) end
      -- Where something comes back, what a dimension lost because another one delayed the bookings may be made up for within so long.
      if more < 0 and reach < 1e16 then lag = min(asked, 25000) end
      states[j], at = {min(ahead, 1e16), full}, at + 2
    else
      local begins, ends, ended = nil, nil, 0
      for i = e + 5, e + 7 do
        if not ends and w[i] > now then begins, ends = w[i - 1], w[i] end
      end
      if not ends or begins > now then return nil end
      if kept then ended = kept[at + 3] end
      local s = {0, begins, ends, 0, 0, 0, 0, 0}
      if ended > now and ended <= w[e + 7] + (ends - begins) then
        for k = 1, 8 do s[k] = kept[at + k] end
      elseif ended > now then -- the clock was years ahead, say
        s[1] = kept[at + 1]
      elseif kept then
        s[1] = max(0, kept[at + 1] - burst[j] * max(1, floor((ends - ended) / (ends - begins) + 0.5)))
        if ended == begins then s[6], s[7], s[8] = kept[at + 4], begins + kept[at + 5], floor(burst[j] / max(kept[at + 4], 1)) end
      elseif told and told[at + 3] > now then -- all is lost: nothing is granted until the others have told what they know
        s[6], s[7], s[8] = 1, now + 1000000, burst[j]
      end
      if told and told[at + 3] == s[3] then s[1] = max(s[1], told[at + 1]) end
      if more > 0 then s[1] = min(s[1] + more, 1e16) end
      if more < 0 and now - oldest >= s[2] then s[1] = max(0, s[1] + more) end
      if seat == s[2] and s[6] > 0 then s[6], seat = s[6] - 1, 0 end
      states[j], at = s, at + 8
    end
  end

  local begin, i, wait, place, out, step, slack, start = 0, 13 + 7 * dims, 0, 0, {}, {}, {}, {}
  while w[i] do
    local want, first, n, last, run = w[i], max(begin, hush), w[i], 0, {}
    place = 0
    for j = 1, dims do
      step[j], slack[j] = w[i + j] * every[j], (burst[j] - min(w[i + j], burst[j])) * every[j]
      if step[j] > 0 and states[j][1] - slack[j] > first then first, place = states[j][1] - slack[j], j end
    end
    if hush > 0 then n, wait = 0, max(wait, first) end
    for j = 1, dims do
      local s = states[j]
      start[j] = first
      if step[j] > 0 then start[j] = max(s[1], first - lag) - slack[j] end
      if step[j] > 0 and within >= 0 then
        last = start[j] + (want - 1) * step[j]
        if last > within then n, wait = 0, max(wait, last) end
      elseif step[j] > 0 then
        if room[j] == nil then room[j] = first > 0 and horizon * min(1, horizon / first) or max(horizon, step[j]) - start[j] end
        n = min(n, max(floor(room[j] / step[j]), #out == 0 and min(n, 1) or 0))
      elseif every[j] == 0 and w[i + j] > 0 then
        local closes, held, left = s[3] - now, now < s[7], 0
        local over = closes <= trip + margin
        if not over and first <= 0 then left = burst[j] - s[1] - (held and s[6] * s[8] or 0) end
        n = max(min(n, floor(left / w[i + j])), 0)
        if n < want then
          local later = over and closes or min(first > 0 and first or held and s[7] - now or closes, closes)
          if within < 0 or n < 1 then place, wait = j, within < 0 and later or max(wait, later) end
          if within < 0 and later == closes and seat ~= s[3] then
            s[4], s[5], seat = s[4] + 1, max(s[5], 2 * trip + 50000), s[3]
          end
        end
      end
    end
    local other = claim ~= 0 and claim ~= client
    if within >= 0 then
      if n < want or first > within or other then n, wait = 0, max(wait, first, 1) end
    elseif n > 0 and #out == 0 then
      if other or first > max(latest, hush) + reach then
        n, wait = 0, max(first, 1)
        if not other then claim, lasts = client, 1000000 + 2 * trip end
      elseif claim == client then
        claim, lasts = 0, 0
      end
    end
    if n > 0 or within >= 0 then
      last, run[1], run[2], run[3] = first, n, place, first
      for j = 1, dims do
        if every[j] > 0 then run[#run + 1] = start[j] end
        if step[j] > 0 then last = max(last, start[j] + (n - 1) * step[j]) end
      end
      out[#out + 1] = run
    end
    if n > 0 then
      for j = 1, dims do
        local s = states[j]
        if step[j] > 0 then
          s[1] = min(max(start[j] + n * step[j], last - lag - slack[j] + step[j]) + slack[j], 1e16)
          if within < 0 then room[j] = room[j] - n * step[j] end
        elseif every[j] == 0 then
          s[1] = s[1] + n * w[i + j]
        end
      end
      latest = min(max(latest, last), 1e16)
      if within < 0 then begin = last end
    end
    if n < want and within < 0 then break end
    i = i + 1 + dims
  end

  local keep = hush
  for j = 1, dims do
    local s, rest = states[j], 0
    if every[j] > 0 then
      rest = max(s[1], hush + (burst[j] - 1) * every[j])
    else
      rest = s[3] - now + (s[3] - s[2]) * max(1, s[1] / burst[j])
    end
    keep = max(keep, rest)
  end
  return {life, now, hush, claim, lasts, latest, near, count + 1}, states, keep, wait, place, seat, out
"""
"""What decides, of the numbers ``w`` of a `Question`, ``kept`` of the value, ``told`` of that which the client was told last, and whether
this is the ``same``. `aiorate._store.twin` reads it as Python, so between ``and`` and ``or`` there is never a 0."""

TEXT = f"""\
-- aiorate: assigns permits. All durations are in microseconds. ARGV[1] has little-endian doubles, those of aiorate._store.script.Question.
-- ARGV[2] is the value that the client was told last, or its first two words if there was none: they name the kind of limit.
local max, min, floor, sqrt = math.max, math.min, math.floor, math.sqrt
local function assign(now, w, kept, told, same)
{ASSIGN}end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local w = {{struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}}
w[#w] = nil -- where it stopped
local ours, size = string.match(ARGV[2], '^%S+ (%S+)'), 8
for j = 1, w[12] do size = size + (w[6 + 7 * j] > 0 and 2 or 8) end

-- The numbers of a value; nil if it is none.
local function read(text)
  local kind, rest = string.match(text or '', '^aiorate/2 (%S+) (.+)$')
  local value = {{}}
  for word in string.gmatch(kind == ours and rest or '', '%S+') do
    local number = tonumber(word) or 1e18
    value[#value + 1] = number > -1e18 and number < 1e18 and number or nil
  end
  return #value == size and value or nil
end

local text = redis.call('GET', KEYS[1])
local kept = read(text)
if text and not kept then
  local holds = string.match(text, '^aiorate/%S* %S+') or string.match(text, '^aiorate/%S*') or 'something else'
  return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' holds ' .. holds .. ', and no sound aiorate/2 ' .. ours)
end
local told = ARGV[2] ~= text and read(ARGV[2]) or nil
local value, states, keep, wait, place, seat, runs = assign(now, w, kept, told, text == ARGV[2])
if not value then return redis.status_reply(string.format('aiorate/2 %s %.0f; 0 0 0', ours, now)) end
for _, state in ipairs(states) do
  for _, number in ipairs(state) do value[#value + 1] = number end
end
for i, number in ipairs(value) do value[i] = string.format(' %.17g', number) end
value = 'aiorate/2 ' .. ours .. table.concat(value)
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', min(math.ceil(keep / 1000) + 1000, 1e14))
for i, run in ipairs(runs) do runs[i] = string.format(' %.0f %.0f' .. string.rep(' %.3f', #run - 2), unpack(run)) end
-- A status is a line, which clients read faster than a string with a length.
return redis.status_reply(value .. string.format('; %.3f %.0f %.0f', wait, place, seat) .. table.concat(runs))
"""
SHA = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()


class Unreachable(Exception):
    """No answer, or none that makes sense. That may pass."""


class Refusal(Exception):
    """The store refuses: a wrong password, a missing permission, a key of another type or release. Waiting does not help."""


class Question(NamedTuple):
    """What a client asks and tells. All durations are in us."""

    pause: float = -1  # how long to pause all processes from now; 0: a pause is over, -1: nothing changed
    horizon: float = 0  # how far ahead all processes together aim to book
    reach: float = MOST  # how much later than the latest booking one may be; whoever is later claims, and others leave room
    within: float = -1  # how far ahead a request may be due, which is then granted whole or not at all; -1: any time
    age: float = 0  # how long ago the client was told the value that it remembers
    client: int = 0  # its number
    oldest: float = 0  # how long ago the first grant was of which something comes back
    took: float = -1  # how long an answer takes; -1: unknown
    seat: float = 0  # the end of the window after which the client has a seat; 0: it has none
    gone: int = 0  # 1: what comes back counts only if nobody has asked since
    margin: float = 0  # how long before its end a window stops granting, apart from the time of an answer
    limits: Sequence[Sequence[float]] = ()  # the `row` of each dimension
    runs: Sequence[tuple[float, Sequence[float]]] = ()  # how many requests, of which amounts; none above `MOST`


class Answer(NamedTuple):
    """What the script says. Durations are in us, from the instant at which it ran."""

    value: str  # of the key, to be remembered; empty if the question named no present window
    numbers: list[float]  # of the value; without one, the time of the server
    wait: float  # how long the first request that got nothing has to wait; 0: there is none
    place: int  # the dimension that it waits for, from 1; 0: none
    seat: float  # see `Question.seat`
    runs: list[tuple[int, int, list[float]]]  # requests granted, the dimension they waited for, when the first is due and by each rate


def row(part: Part, more: int, edges: Sequence[int] = (0,) * 4) -> list[float]:
    """The numbers of a dimension, of which ``more`` was used than the store knows. ``edges``: of its windows, in ns."""
    return [part.every_us, part.burst, max(min(more, MOST), -MOST), *[edge / 1000 for edge in edges]]


def numbers_of(question: Question) -> list[float]:
    """The first argument of the script: the fields, how many dimensions, the `row` of each, and of each run how many and the amounts."""
    *head, limits, runs = question
    return [*head, len(limits), *chain(*limits), *chain(*[(n, *amounts) for n, amounts in runs])]


def pack(question: Question) -> bytes:
    numbers = numbers_of(question)
    return pack_numbers(f"<{len(numbers)}d", *numbers)


def read_answer(reply: object, rates: int, windows: int, runs: int) -> Answer:
    """The script's reply, bytes or text, to so many runs. Raises `Unreachable`."""
    with suppress(ValueError):
        value, _, tail = (reply.decode() if isinstance(reply, bytes) else str(reply)).partition("; ")
        form, _, *words = value.split(" ")
        numbers, (wait, place, seat, *rest), size = [*map(float, words)], map(float, tail.split(" ")), 3 + rates
        whole = len(numbers) == HEAD + OF_RATE * rates + OF_WINDOW * windows
        right = form == FORM and (whole or len(numbers) == 1) and 0 <= place <= rates + windows
        if right and len(rest) <= size * runs and len(rest) % size == 0 and sum(map(abs, [*numbers, wait, seat, *rest])) < 1e19:
            found = [(int(rest[i]), int(rest[i + 1]), rest[i + 2 : i + size]) for i in range(0, len(rest), size)]
            return Answer(value if whole else "", numbers, wait, int(place), seat, found)
    raise Unreachable(f"the store gave an answer that the script never gives: {str(reply)[:80]!r}")
