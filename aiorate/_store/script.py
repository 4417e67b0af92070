"""The one script that assigns permits, its questions and its answers: for limiters, budgets and windows of the calendar alike.

A request is a tuple of amounts, one for each dimension: a limiter's are slots, (1, ...) each, a budget's are reservations. A dimension is
a rate with a burst, or a window. Equal requests are a run, which the script answers in closed form. One key, one round trip, and only the
server's clock. `aiorate._store.twin` answers the same in Python.

The value of a key is text: ``aiorate/2``, the kind of limit, and numbers. Durations are in us and relative to ``written``, so nothing
depends on what the clock says, only on how far it moves; edges of windows are absolute.

* ``life``: when the value was made. What a client remembers decides nothing within one life, and restores what was lost in another.
* ``written``; ``hush``: how long a pause goes on.
* ``claim`` and ``lasts``: the client for which others leave room, and for how long. ``latest``: the latest booking.
* ``near``: how long an answer takes to the nearest process that asks. ``count``: of questions that were answered in this life.
* of each rate ``ahead``: when its bucket is full again, and ``full``: when it was full last; what was granted before cannot come back.
* of each window ``used began ends``, ``seats`` and ``patience`` for the next one, and what was kept of these for this one: ``due`` seats
  of ``share`` permits, until ``hold``.

The number in the first word is the version. Change it whenever the value changes in any way: a release that meets another number leaves
the value alone and answers ``VERSION``, which is a refusal.
"""

from __future__ import annotations

from hashlib import sha1
from struct import pack as pack_numbers
from typing import TYPE_CHECKING, NamedTuple

from aiorate._store.failures import Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.slots import Part


FORM = "aiorate/2"
MOST = 1e16
"""A longer duration counts for this one: 317 years, exact to 2 us."""
MOST_RUNS = 100
"""In one question."""
HEAD, OF_RATE, OF_WINDOW = 8, 2, 8
"""Numbers of a value."""

TEXT = """\
-- aiorate: assigns permits. All durations are in microseconds. ARGV[1] has little-endian doubles: pause (-1: none, 0: over), horizon,
-- reach, within (-1: any time), age, client, oldest, took (-1: unknown), seat, gone, margin, dimensions; of each dimension: every (0: a
-- window), burst, correction, four edges; of each run: how many, amounts. ARGV[2] is the value that the client was told last, an age ago,
-- or its first two words if there was none: they name the kind of limit.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, min, floor = math.max, math.min, math.floor
local w = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
w[#w] = nil -- where it stopped
local pause, horizon, reach, within, age, client, oldest, took, seat, gone, margin, dims = unpack(w, 1, 12)
local size, every, burst, more, at = 8, {}, {}, {}, {}
for j = 1, dims do
  local o = 5 + 7 * j
  every[j], burst[j], more[j], at[j] = w[o + 1], w[o + 2], w[o + 3], size
  size = size + (every[j] > 0 and 2 or 8)
end

local ours = string.match(ARGV[2], '^%S+ (%S+)')

-- The numbers of a value; nil if it is none.
local function read(text)
  local form, kind, rest = string.match(text, '^(%S+) (%S+) (.+)$')
  if form ~= 'aiorate/2' or kind ~= ours then return nil end
  local value = {}
  for word in string.gmatch(rest, '%S+') do
    local number = tonumber(word) or 1e18
    if not (number > -1e18 and number < 1e18) then return nil end
    value[#value + 1] = number
  end
  return #value == size and value or nil
end

local text = redis.call('GET', KEYS[1])
local kept = text and read(text)
if text and not kept then
  local form = string.match(text, '^aiorate/%S*')
  if form and form ~= 'aiorate/2' then
    return redis.error_reply('VERSION the key ' .. KEYS[1] .. ' was written as ' .. form .. '; this release reads aiorate/2')
  end
  return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' has another kind of limit, or something else')
end
local told = ARGV[2] ~= text and read(ARGV[2]) or nil
if told and kept and told[1] == kept[1] and told[8] <= kept[8] then told = nil end
local tail = gone == 0 or text == ARGV[2]
-- A clock that went back has not moved.
local passed = kept and max(0, now - kept[2]) or 0
local life, hush, claim, lasts, latest, near = now, 0, 0, 0, 0, took
if kept then
  life, hush, claim, lasts, latest = kept[1], kept[3] - passed, kept[4], kept[5] - passed, max(kept[6] - passed, 0)
  near = kept[7]
  if took >= 0 then near = near < 0 and took or min(took, near + passed / 4) end
end
-- Nothing accrues before a pause is over, but a debt is paid.
local still = kept and kept[3] > 0 and min(hush, 0) or -1e18
if told then hush, latest = max(hush, told[3] - age), max(latest, told[6] - age) end
if pause >= 0 then hush = pause > 0 and max(hush, pause) or 0 end
hush = min(max(hush, 0), 1e16)
if lasts <= 0 then claim, lasts = 0, 0 end
-- Where something comes back, what a dimension lost because another one delayed the bookings may be made up for within so long.
local lag = 0
for j = 1, dims do
  if more[j] < 0 and reach < 1e16 then lag = min(horizon, 25000) end
end
-- A process far from the store has to book further ahead, but not so far that those near it have nothing left.
local trip = max(took, 0)
if near >= 0 then horizon = math.sqrt(max(horizon, near) * max(horizon, trip)) else horizon = max(horizon, trip) end

local ahead, full = {}, {}
local used, began, ends, seats, patience, due, hold, share = {}, {}, {}, {}, {}, {}, {}, {}
for j = 1, dims do
  local o, a = at[j], 0
  if every[j] > 0 then
    full[j] = 0
    if kept then
      a, full[j] = kept[o + 1] - passed, kept[o + 2] - passed
      a = max(a, min(kept[o + 1], (burst[j] - 1) * every[j]) + still)
    end
    if told and told[o + 1] - age > a then a = told[o + 1] - age + (kept and 0 or horizon) end
    if a <= 0 then a, full[j] = 0, 0 end
    if more[j] > 0 then a = a + more[j] * every[j] end
    if more[j] < 0 and -oldest >= full[j] and tail then a = max(a + more[j] * every[j], 0) end
    ahead[j] = min(a, 1e16)
  else
    local e, to, from = 9 + 7 * j, nil, nil
    for i = e + 3, e + 1, -1 do
      if w[i] > now then to, from = w[i], w[i - 1] end
    end
    if not to or from > now then return redis.status_reply(string.format('%.0f; clock', now)) end
    used[j], began[j], ends[j], seats[j], patience[j], due[j], hold[j], share[j] = 0, from, to, 0, 0, 0, 0, 0
    if kept and kept[o + 3] > now and kept[o + 3] <= w[e + 3] + (to - from) then
      used[j], began[j], ends[j], seats[j], patience[j], due[j], hold[j], share[j] = unpack(kept, o + 1, o + 8)
    elseif kept and kept[o + 3] > now then -- the clock was years ahead, say
      used[j] = kept[o + 1]
    elseif kept then
      used[j] = max(0, kept[o + 1] - burst[j] * max(1, floor((to - kept[o + 3]) / (to - from) + 0.5)))
      if kept[o + 3] == from then
        due[j], hold[j], share[j] = kept[o + 4], from + kept[o + 5], floor(burst[j] / max(kept[o + 4], 1))
      end
    elseif told and told[o + 3] > now then -- all is lost: nothing is granted until the others have told what they know
      due[j], hold[j], share[j] = 1, now + 1000000, burst[j]
    end
    if told and told[o + 3] == ends[j] then used[j] = max(used[j], told[o + 1]) end
    if more[j] > 0 then used[j] = min(used[j] + more[j], 1e16) end
    if more[j] < 0 and now - oldest >= began[j] then used[j] = max(0, used[j] + more[j]) end
    if seat == began[j] and due[j] > 0 then due[j], seat = due[j] - 1, 0 end
  end
end

local begin, out, i, wait, place, room = 0, {}, 12 + 7 * dims + 1, 0, 0, {}
while w[i] do
  local want, first, n, step, slack, start = w[i], max(begin, hush), w[i], {}, {}, {}
  place = 0
  for j = 1, dims do
    local a = w[i + j]
    if every[j] > 0 then
      step[j], slack[j] = a * every[j], (burst[j] - min(a, burst[j])) * every[j]
      if a > 0 and ahead[j] - slack[j] > first then first, place = ahead[j] - slack[j], j end
    end
  end
  if hush > 0 then n, wait = 0, max(wait, first) end
  for j = 1, dims do
    local a = w[i + j]
    if step[j] then
      start[j] = max(ahead[j], first - lag) - slack[j]
      if a > 0 and within >= 0 then
        local last = start[j] + (want - 1) * step[j]
        if last > within then n, wait = 0, max(wait, last) end
      elseif a > 0 then
        room[j] = room[j] or first > 0 and horizon * min(1, horizon / first) or max(horizon, step[j]) - start[j]
        n = min(n, max(floor(room[j] / step[j]), #out == 0 and min(n, 1) or 0))
      end
    elseif a > 0 then
      local closes, held = ends[j] - now, now < hold[j]
      local over = closes <= trip + margin
      local left = (over or first > 0) and 0 or burst[j] - used[j] - (held and due[j] * share[j] or 0)
      n = max(min(n, floor(left / a)), 0)
      if n < want then
        local until_then = over and closes or min(first > 0 and first or held and hold[j] - now or closes, closes)
        if within < 0 or n < 1 then place, wait = j, max(within < 0 and 0 or wait, until_then) end
        if within < 0 and until_then == closes and seat ~= ends[j] then
          seats[j], patience[j], seat = seats[j] + 1, max(patience[j], 2 * trip + 50000), ends[j]
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
  if n > 0 then
    local last = first
    for j = 1, dims do
      if step[j] and step[j] > 0 then last = max(last, start[j] + (n - 1) * step[j]) end
    end
    local words = string.format(' %.0f %.0f %.3f', n, place, first)
    for j = 1, dims do
      if not step[j] then
        used[j] = used[j] + n * w[i + j]
      else
        words = words .. string.format(' %.3f', step[j] > 0 and start[j] or first)
        if step[j] > 0 then
          ahead[j] = min(max(start[j] + n * step[j], last - lag - slack[j] + step[j]) + slack[j], 1e16)
          if room[j] then room[j] = room[j] - n * step[j] end
        end
      end
    end
    out[#out + 1] = words
    latest = min(max(latest, last), 1e16)
    if within < 0 then begin = last end
  elseif within >= 0 then
    out[#out + 1] = ' 0'
  end
  if n < want and within < 0 then break end
  i = i + 1 + dims
end

local keep, tailing = hush, {}
for j = 1, dims do
  if every[j] > 0 then
    keep = max(keep, ahead[j], hush + (burst[j] - 1) * every[j])
    tailing[j] = string.format(' %.17g %.17g', ahead[j], full[j])
  else
    keep = max(keep, (ends[j] - now) + (ends[j] - began[j]) * max(1, used[j] / burst[j]))
    tailing[j] = string.format(' %.17g %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
      used[j], began[j], ends[j], seats[j], patience[j], due[j], hold[j], share[j])
  end
end
local count = kept and kept[8] + 1 or 1
local numbers = string.format(' %.0f %.0f %.17g %.0f %.17g %.17g %.17g %.0f', life, now, hush, claim, lasts, latest, near, count)
local value = 'aiorate/2 ' .. ours .. numbers
value = value .. table.concat(tailing)
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', min(math.ceil(keep / 1000) + 1000, 1e14))
-- A status is a line, which clients read faster than a string with a length.
return redis.status_reply(value .. string.format('; %.3f %.0f %.0f', wait, place, seat) .. table.concat(out))
"""
SHA = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()


class Question(NamedTuple):
    """What a client asks and tells. All durations are in us."""

    pause: float = -1  # how long to pause all processes from now; 0: a pause is over, -1: nothing changed
    horizon: float = 0  # how far ahead all processes together aim to book
    reach: float = MOST  # how much later than the latest booking one may be; who is due later claims, and others leave room
    within: float = -1  # how far ahead a request may be due, which is then granted whole or not at all; -1: any time is of use
    age: float = 0  # how long ago the client was told the value that it remembers
    client: int = 0  # its number
    oldest: float = 0  # how long ago that was granted of which something comes back
    took: float = -1  # how long an answer takes; -1: unknown
    seat: float = 0  # the end of the window at which the client has a seat in the next one; 0: it has none
    gone: int = 0  # 1: what comes back counts only if nobody has asked since
    margin: float = 0  # how long before its end a window grants nothing more, beside the time of an answer


class Answer(NamedTuple):
    """What the script says. Durations are in us, from the instant at which it ran."""

    value: str  # that of the key, to be remembered; empty if the question named no window of the present
    numbers: list[float]  # those of the value; of an answer without one, the time of the server
    wait: float  # how long the first request that got nothing has to wait; 0: all got something
    place: int  # the dimension for which that one waits, counted from 1; 0: none
    seat: float  # the seat that the client has now; see `Question.seat`
    runs: list[tuple[int, int, list[float]]]
    """Of each run: how many requests it granted, the dimension that they waited for, and when the first is due, by each rate too."""


def row(part: Part, more: int, edges: Sequence[int] = ()) -> list[float]:
    """The numbers of a dimension, of which ``more`` was used than the store knows. ``edges``: of its windows, in ns; none: it is paced."""
    return [part.every_us, part.burst, max(min(more, MOST), -MOST), *([edge / 1000 for edge in edges] or [0.0] * 4)]


def numbers_of(question: Question, limits: Sequence[Sequence[float]], runs: Sequence[tuple[int, Sequence[float]]]) -> list[float]:
    """The first argument of the script, as numbers. Of each dimension: every, burst, correction, four edges."""
    numbers: list[float] = [*question, len(limits)]
    for each in limits:
        numbers += each
    for n, amounts in runs:
        numbers += [min(n, MOST), *[min(amount, MOST) for amount in amounts]]
    return numbers


def pack(numbers: Sequence[float]) -> bytes:
    """The first argument of the script."""
    return pack_numbers(f"<{len(numbers)}d", *numbers)


def read_answer(reply: object, rates: int, windows: int, asked: Sequence[int], whole: bool) -> Answer:
    """The script's reply, bytes or text, to runs of ``asked`` requests; ``whole``: each is granted whole, or 0. Raises `Unreachable`."""
    try:
        value, _, tail = (reply.decode() if isinstance(reply, bytes) else str(reply)).partition("; ")
        if tail == "clock":
            return Answer("", [_sound(value)], 0.0, 0, 0.0, [])
        form, _kind, *words = value.split(" ")
        numbers = [*map(_sound, words)]
        wait, place, seat, *rest = map(_sound, tail.split(" "))
        runs: list[tuple[int, int, list[float]]] = []
        while rest:
            run, rest = rest[: 3 + rates if rest[0] else 1], rest[3 + rates if rest[0] else 1 :]
            runs.append((int(run[0]), int(run[1]) if run[0] else 0, run[2:]))
            most = asked[len(runs) - 1]
            if not (run[0] in (0, most) if whole else 0 < run[0] <= most) or len(run) not in (1, 3 + rates):
                raise ValueError
        complete = len(runs) == len(asked) if whole else runs or wait > 0 or not asked
        if complete and form == FORM and len(numbers) == HEAD + OF_RATE * rates + OF_WINDOW * windows and 0 <= place <= rates + windows:
            return Answer(value, numbers, wait, int(place), seat, runs)
    except (ValueError, IndexError):
        pass
    raise Unreachable(f"the store gave an answer that the script never gives: {str(reply)[:80]!r}")


def _sound(word: str) -> float:
    """Raises ValueError for what the script never says: an infinite number, or none."""
    number = float(word)
    if not -1e18 < number < 1e18:
        raise ValueError
    return number
