"""The script that books reservations of several dimensions, its questions and its answers. One key, one round trip, the server's clock.

A reservation takes an amount of each dimension. The script books those of a question in order, each at the first instant at which all
dimensions have its amount, by GCRA. So amounts are taken from all dimensions at once, and no two bookings are of the same permits.

The value of the key is text: ``aiorate:budget/1``, the server's time (us since the epoch) at which it was written, how often it was,
how long a pause went on then, what each busy client was entitled to since the beginning (see ``demand.py``), how far ahead the latest
booking was, and the client whose large reservation all others let pass, with how long they do. For each dimension follow its name, how
far ahead it is full, how many permits came back that no booking has used yet, how long ago it was full, and how many went by unused.
Times are in us and relative, as in ``script.py``. A dimension that a client does not have stays in the value as it is, and grows older.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from aiorate._store.asking import Script
from aiorate._store.scripting import FAR, MOST, bad_answer, text_of, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits

__all__ = ["BOOKINGS", "MOST_NUMBERS", "TEXT", "BookingAnswer", "BookingQuestion", "Limits", "read_booking_answer"]

_OF_A_LIMITER = """\
  if not string.match(found, '^aiorate:budget/') then
    local hint = ' is that of a RedisLimiter. Give the RedisBudget another name'
    return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. hint)
  end
"""
TEXT = (
    """\
-- aiorate: books reservations of several dimensions, by GCRA. All durations are in microseconds.
-- ARGV[1]: pause (-1: none, 0: over), horizon, reach, served (-1: nothing is known), age, within (-1: any time), the start of the latest
-- booking of the client, the client, how long ago the first grant was of which something comes back, the number of dimensions and of
-- requests, then interval, burst and correction (what was used besides the bookings, less what came back) of each dimension, then the
-- amounts of each request. Little-endian doubles.
-- ARGV[2]: the names of the dimensions, a line feed, and the value that the client was told last, an age ago; empty if there was none.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, min = math.max, math.min
local words = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local pause, horizon, reach, served, age, within, from, client, oldest, count, requests = unpack(words, 1, 11)
local told, remembered = string.match(ARGV[2], '^([^\\n]*)\\n(.*)$')
-- A longer duration counts for this one: 317 years, exact to 2 us.
local far = 1e16

local form = 'aiorate:budget/1'

local function number(word)
  local value = tonumber(word)
  return value and value > -1e18 and value < 1e18 and value
end

local function read(text)
  local pattern = '^' .. form .. ' (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)(.*)$'
  local written, writes, paused, entitled, latest, first, until_, rest = string.match(text, pattern)
  local value = {written = number(written), paused = number(paused), entitled = number(entitled), latest = number(latest)}
  value.writes, value.first, value.until_, value.dims, value.names = number(writes), number(first), number(until_), {}, {}
  if not (value.written and value.writes and value.paused and value.entitled) then return nil end
  if not (value.latest and value.first and value.until_) then return nil end
  for name, ahead, back, full, unused in string.gmatch(rest, '(%S+) (%S+) (%S+) (%S+) (%S+)') do
    ahead, back, full, unused = number(ahead), number(back), number(full), number(unused)
    if not (ahead and back and full and unused) then return nil end
    value.names[#value.names + 1] = name
    value.dims[name] = {ahead = ahead, back = back, full = full, unused = unused}
  end
  return value
end

"""
    + value_of("^aiorate[^/]*/%S*", "aiorate", _OF_A_LIMITER)
    + """\
-- An older value says less: permits may have come back since.
if known and stored and stored.writes >= known.writes then known = nil end
local none = {written = now, writes = 0, paused = 0, entitled = 0, latest = 0, first = 0, until_ = 0, dims = {}, names = {}}
local last = stored or known or none
-- A clock that went back has not moved.
local elapsed = stored and max(0, now - stored.written) or age
local since = known and (stored and max(0, now - known.written) or age) or 0
local paused = last.paused - elapsed
local latest = max(last.latest - elapsed, 0)
if known then latest = max(latest, known.latest - since) end

local names, interval, burst, ahead, back, full, unused = {}, {}, {}, {}, {}, {}, {}
for name in string.gmatch(told, '%S+') do names[#names + 1] = name end
local was = -far
for j = 1, count do
  local place = 3 * j + 9
  interval[j], burst[j] = words[place], words[place + 1]
  local before, heard = last.dims[names[j]], known and known.dims[names[j]]
  local value, returned, gone = 0, 0, 0
  if before then
    value, returned, gone, full[j] = before.ahead - elapsed, before.back, before.unused, before.full + elapsed
    was = max(was, before.ahead - (burst[j] - 1) * interval[j])
    -- Nothing accrues before a pause is over.
    if last.paused > 0 then value = max(value, min(paused, 0) + (burst[j] - 1) * interval[j]) end
    gone = min(gone + max(-value, 0) / interval[j], far)
  end
  if heard and stored then
    -- What the client was told, and this server has lost.
    value = max(value, heard.ahead - since)
  elseif heard and value > 0 then
    -- All is lost. The other clients may have booked as far ahead again.
    value = value + horizon
  end
  if heard then gone = max(gone, heard.unused) end
  ahead[j], back[j], unused[j] = max(value, 0), returned, gone
  if value <= 0 or not before then full[j] = 0 end
end

-- What came back counts for later bookings, as far as those that are ahead could have been earlier with it; but not if the dimension
-- was full since: it had accrued again.
local function clip(j)
  back[j] = max(min(back[j], max(ahead[j], latest) / interval[j]), 0)
end
for j = 1, count do
  local correction = words[3 * j + 11]
  if correction >= 0 then
    ahead[j] = min(ahead[j] + correction * interval[j], far)
  elseif oldest <= full[j] then
    back[j] = back[j] - correction
  end
  clip(j)
end
if pause > 0 then paused = max(paused, min(pause, far)) elseif pause == 0 then paused = 0 end
paused = max(paused, 0)

-- How far ahead all is booked: the first instant at which there is a permit of each dimension.
local function booked()
  local value = latest
  for j = 1, count do value = max(value, ahead[j] - (burst[j] - 1) * interval[j]) end
  return value
end
local begin = booked()
local cost = 0
for i = 1, requests do
  for j = 1, count do cost = max(cost, words[11 + 3 * count + (i - 1) * count + j] * interval[j]) end
end
-- The part of the rate that each busy client may have, the less the further all have booked.
local function part(value)
  if value <= 0 then return 1.25 end
  return min(1.25, max(cost, horizon * horizon / value) / value)
end
-- What each was entitled to since the beginning. A client knows how much of that it has had.
local entitled = max(last.entitled + elapsed * (part(max(was, last.latest)) + part(begin)) / 2, known and known.entitled or 0)

local first, until_ = last.first, last.until_ - elapsed
if until_ <= 0 then first, until_ = 0, 0 end
-- The dimension for which the latest of them waits; 0: none.
local starts, wait, tightest = {}, 0, 0
if paused == 0 then
  for i = 1, requests do
    local start, amounts, place = max(from, 0), {}, tightest
    for j = 1, count do
      local amount = words[11 + 3 * count + (i - 1) * count + j]
      amounts[j] = amount
      if amount > 0 then
        local due = ahead[j] - (back[j] + burst[j] - min(amount, burst[j])) * interval[j]
        if due > start then start, place = due, j end
      end
    end
    if #starts == 0 then
      -- Behind the bookings of others it has its place among them. Otherwise it waits for amounts to accrue, or to come back.
      local longest = latest > reach and horizon or reach
      local late = within >= 0 and start > within
      if late or start > latest + longest or (first ~= 0 and first ~= client) then
        wait, tightest = max(start, 1), place
        if within < 0 and (first == 0 or first == client) then first, until_ = client, 1500000 end
        break
      end
      if first == client then first, until_ = 0, 0 end
    else
      local had = booked() - begin
      if within >= 0 and start > within then break end
      if begin > 0 and served >= 0 then
        if had >= entitled - served then break end
      elseif begin > 0 then
        if had >= horizon * min(1, horizon / begin) then break end
      elseif start > horizon and not (served >= 0 and had < entitled - served) then break end
    end
    for j = 1, count do
      if amounts[j] > 0 then
        -- Permits that came back make up for those that have not accrued by then, and the others are kept.
        local lacks = max(ahead[j] - start - (burst[j] - min(amounts[j], burst[j])) * interval[j], 0)
        local used = min(back[j], lacks / interval[j])
        back[j] = back[j] - used
        ahead[j] = min(max(ahead[j] - used * interval[j], start) + amounts[j] * interval[j], far)
      end
    end
    latest, from, tightest = max(latest, start), start, place
    starts[#starts + 1] = string.format(' %.17g %d', start, place)
  end
end
for j = 1, count do clip(j) end
if requests == 0 and first == client then first, until_ = 0, 0 end

local keep, mine, out = max(paused, latest), {}, {}
local numbers = ' %.17g %.17g %.17g %.17g'
for j = 1, count do
  keep = max(keep, ahead[j])
  if paused > 0 then keep = max(keep, paused + burst[j] * interval[j]) end
  mine[names[j]] = true
  out[#out + 1] = ' ' .. names[j] .. string.format(numbers, ahead[j], back[j], full[j], unused[j])
end
for _, name in ipairs(last.names) do
  local other = last.dims[name]
  if not mine[name] then
    local value = max(other.ahead - elapsed, -far)
    keep = max(keep, value)
    out[#out + 1] = ' ' .. name .. string.format(numbers, value, other.back, other.full + elapsed, other.unused)
  end
end
local writes = max(last.writes, known and known.writes or 0) + 1
local head = string.format('%s %.0f %.17g %.17g %.17g %.17g %.17g %.17g', form, now, writes, paused, entitled, latest, first, until_)
local value = head .. table.concat(out)
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', min(math.ceil(keep / 1000) + 1000, 1e14))
local said = string.format('; %.17g %.17g %d', booked() - begin, wait, tightest)
-- A status is a line, which clients read faster than a string with a length.
return redis.status_reply(value .. said .. table.concat(starts))
"""
)
BOOKINGS = Script.of(TEXT)
MOST_NUMBERS = 3_000
"""Amounts in one question: Lua unpacks some 8 000 numbers at once."""
_FORM = "aiorate:budget/1"  # the first word of a value, as in the script
_HEAD = 8  # words of a value before the dimensions
_OF_EACH = 5  # words of a dimension


class Limits:
    """The dimensions of a budget as the script takes them. A rate without a burst has a burst of 1."""

    __slots__ = ("_encoded", "bursts", "intervals", "names")

    def __init__(self, names: Sequence[str], rates: Sequence[Rate], bursts: Sequence[int]) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._encoded = [quote(name, safe="", errors="surrogatepass") or "%" for name in names]
        self.intervals: list[float] = [rate.period_ns / (rate.permits * 1_000) for rate in rates]
        """The us of a permit of each."""
        self.bursts: tuple[int, ...] = tuple(bursts)

    def text(self, remembered: str) -> str:
        """The names, and the value that the client remembers."""
        return f"{' '.join(self._encoded)}\n{remembered}"

    def find(self, words: list[str]) -> list[list[float]]:
        """The numbers of each dimension among the words of a value. Raises ValueError if one is missing."""
        found = {words[place]: words[place + 1 : place + _OF_EACH] for place in range(_HEAD, len(words), _OF_EACH)}
        numbers = [[float(word) for word in found.get(name, ())] for name in self._encoded]
        if not all(len(each) == _OF_EACH - 1 for each in numbers):
            raise ValueError
        return numbers

    def cost(self, amounts: Sequence[int]) -> float:
        """The us that a reservation takes of the dimension that it needs most of."""
        return max([min(amount, MOST) * interval for amount, interval in zip(amounts, self.intervals, strict=True)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Limits):
            return NotImplemented
        return self._sorted() == other._sorted()

    def _sorted(self) -> list[tuple[str, float, int]]:
        return sorted(zip(self.names, self.intervals, self.bursts, strict=True))


@dataclass(slots=True)
class BookingQuestion:
    """A client's question. All durations are in us."""

    requests: list[tuple[int, ...]] = field(default_factory=list)
    """The amounts of the reservations to book, in order."""
    corrections: tuple[int, ...] = ()
    """What was used of each dimension besides the bookings, less what came back; empty: nothing of either."""
    pause: float = -1
    """How long to pause all processes from now; 0: a pause is over, -1: nothing changed."""
    horizon: float = 0
    """How far ahead all processes together aim to book."""
    reach: float = 0
    """How far after the latest booking of all the first of these may be. If it is later, all others let the client pass first."""
    served: float = -1
    """How much the client has had of what each busy client was entitled to; -1: it is new."""
    age: float = 0
    """How long ago the client was told the value that it remembers."""
    remembered: str = ""
    """That value."""
    within: float = -1
    """How far ahead a booking may be, in which case there may be none; -1: any is useful."""
    begin: float = 0
    """When the latest booking is that the client has in hand. No booking of the question is earlier."""
    client: int = 0
    """A number that no other client has, not 0."""
    oldest: float = 0
    """How long ago the first grant was of which something comes back."""
    charge: Permits = 0
    """Amounts that were granted here while the store was down."""
    want: int = 0
    """The number of requests."""
    back: int = 0
    """Not 0 if there are corrections to tell."""

    def words(self, limits: Limits) -> list[str | bytes]:
        """The script's arguments. Few and long, because a client takes its time for each."""
        count = len(limits.names)
        numbers: list[float] = [self.pause, self.horizon, self.reach, self.served, self.age, self.within, self.begin]
        numbers += [self.client, self.oldest, count, len(self.requests)]
        for interval, burst, more in zip(limits.intervals, limits.bursts, self.corrections or (0,) * count, strict=True):
            numbers += [interval, burst, max(min(more, MOST), -MOST)]
        for amounts in self.requests:
            numbers += [min(amount, MOST) for amount in amounts]
        return [Struct(f"<{len(numbers)}d").pack(*numbers), limits.text(self.remembered)]


class BookingAnswer(NamedTuple):
    """The script's answer. All durations are in us, from the instant at which it ran."""

    value: str
    """The key's value, to be remembered."""
    paused: float
    """How long all processes are paused."""
    entitled: float
    """What each busy client was entitled to since the beginning."""
    latest: float
    """When the latest booking of all is."""
    full: list[float]
    """When each dimension is full again."""
    unused: list[float]
    """How many permits of each dimension nobody used since the beginning."""
    cost: float
    """How much of the time ahead the bookings took."""
    wait: float
    """How long until the first reservation might be booked; 0: it was, or there was none."""
    starts: list[float]
    """When the booked ones are, in order."""
    places: list[int]
    """The dimension that each of them waits for, counted from 1; 0: none. The last one is that of a reservation not booked."""

    @property
    def granted(self) -> int:
        """How many it booked."""
        return len(self.starts)


def read_booking_answer(reply: object, limits: Limits, question: BookingQuestion) -> BookingAnswer:
    """The script's reply, bytes or text. Raises `BadAnswer` for anything else."""
    text = text_of(reply)
    value, _, said = text.rpartition("; ")
    try:
        words = value.split(" ")
        numbers = [float(word) for word in words[1:_HEAD]]
        dimensions = limits.find(words)
        cost, wait, tightest, *pairs = said.split(" ")
        times, starts = [float(cost), float(wait)], [float(word) for word in pairs[::2]]
        places = [int(word) for word in (*pairs[1::2], tightest)]
        near = sum(map(abs, [*numbers, *times, *starts, *map(sum, dimensions)])) < FAR  # and none is infinite, or no number
        near = near and len(places) == len(starts) + 1 and all(0 <= place <= len(limits.names) for place in places)
        few = len(starts) <= len(question.requests) and (not starts or not numbers[2])
        if words[0] == _FORM and len(words) % _OF_EACH == _HEAD % _OF_EACH and near and few and starts == sorted(starts):
            full, unused = [each[0] for each in dimensions], [each[3] for each in dimensions]
            return BookingAnswer(value, numbers[2], numbers[3], numbers[4], full, unused, times[0], times[1], starts, places)
    except (ValueError, IndexError):
        pass
    raise bad_answer(text)
