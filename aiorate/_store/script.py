"""The script that assigns time slots, its questions and its answers. One key, one round trip, only the server's clock.

The value of the key is text: ``aiorate/1``, the server's time (us since the epoch) at which it was written, how long a pause went on
then, what each busy client was entitled to since the beginning (see ``demand.py``), how many permits went by unused, and for each
rate how far ahead its next free slot was. Times are in us and relative, so nothing depends on what the clock says, only on how far it
moves. Where it went back, no time has passed. A client remembers the value that it was told last, and sends it along.

The number in the first word is the version of the value. Change it whenever the value changes in any way: a release that meets
another number leaves the value alone and answers ``VERSION``, which is an outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from aiorate._schedulers.amounts import count_of
from aiorate._store.asking import Script
from aiorate._store.scripting import FAR, MOST, bad_answer, text_of, value_of

if TYPE_CHECKING:
    from aiorate._rate import Rate
    from aiorate._schedulers.amounts import Permits

__all__ = ["SHA", "SLOTS", "TEXT", "Answer", "Question", "limits_of", "read_answer"]

TEXT = (
    """\
-- aiorate: assigns time slots at one or several rates, by GCRA. All durations are in microseconds.
-- ARGV[1]: want, charge, pause (-1: none, 0: over), give back, horizon, served (-1: nothing is known), age, within (-1: any time),
-- unit, have, then interval and tolerance of each rate. Each is a little-endian double.
-- ARGV[2]: the value that the client was told last, an age ago; empty if there was none.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, min = math.max, math.min
local words = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local want, charge, pause, back, horizon, served, age, within, unit, have = unpack(words)
local remembered = ARGV[2]
-- A longer duration counts for this one: 317 years, exact to 2 us.
local far = 1e16

local form = 'aiorate/1'

local function number(word)
  local value = tonumber(word)
  return value and value > -1e18 and value < 1e18 and value
end

local function read(text)
  local written, paused, entitled, unused, rest = string.match(text, '^' .. form .. ' (%S+) (%S+) (%S+) (%S+) (.+)$')
  written, paused, entitled, unused = number(written), number(paused), number(entitled), number(unused)
  if not (written and paused and entitled and unused) then return nil end
  local free = {}
  for word in string.gmatch(rest, '%S+') do
    free[#free + 1] = number(word)
    if not free[#free] then return nil end
  end
  return {written = written, paused = paused, entitled = entitled, unused = unused, free = free}
end

"""
    + value_of("^aiorate/%S*", "aiorate")
    + """\
local last = stored or known or {written = now, paused = 0, entitled = 0, unused = 0, free = {}}
-- A clock that went back has not moved.
local elapsed = stored and max(0, now - stored.written) or age
local paused = last.paused - elapsed

local rates, interval, tolerance, free = 0, {}, {}, {}
-- How far ahead the slowest rate is booked, then and now, and how many permits went by that no rate needed.
local was, is, slowest, unused = -far, -far, 0, far
for place = 11, #words - 1, 2 do
  rates = rates + 1
  interval[rates], tolerance[rates] = words[place], words[place + 1]
  local value, before, heard = -tolerance[rates], last.free[rates], known and known.free[rates]
  if before then
    local ahead = before - elapsed
    -- Nothing accrues before a pause is over.
    if last.paused > 0 then ahead = max(ahead, min(paused, 0)) end
    unused = min(unused, max(value - ahead, 0) / interval[rates])
    was = max(was, before)
    if stored then value = max(value, ahead) end
  else
    unused = 0
  end
  if stored then
    -- What the client was told, and this server has lost.
    if heard then value = max(value, heard - max(0, now - known.written)) end
  elseif heard and heard - age > value then
    -- All is lost. The other clients may have booked as far ahead again.
    value = heard - age + horizon
  end
  if last.paused > 0 then value = max(value, min(paused, 0)) end
  is, slowest = max(is, value), max(slowest, interval[rates])
  free[rates] = value
end
unused = min(max(last.unused, known and known.unused or 0) + unused, far)

-- The part of the rate that each busy client may have, the less the further all have booked.
local function part(ahead)
  if ahead <= 0 then return 1.25 end
  return min(1.25, max(slowest, horizon * horizon / ahead) / ahead)
end
-- What each was entitled to since the beginning. A client knows how much of that it has had.
local entitled = max(last.entitled + elapsed * (part(was) + part(is)) / 2, known and known.entitled or 0)

if back > 0 and text == remembered then
  for j = 1, rates do free[j] = free[j] - back * interval[j] end
end
for j = 1, rates do free[j] = min(free[j] + charge * interval[j], far) end
if pause > 0 then paused = max(paused, min(pause, far)) elseif pause == 0 then paused = 0 end
paused = max(paused, 0)

local first, granted, starts = 0, 0, {}
for j = 1, rates do first = j == 1 and free[j] or max(first, free[j]) end
for j = 1, rates do starts[j] = max(free[j], first - tolerance[j]) end
if want > 0 and paused == 0 then
  granted = want
  for j = 1, rates do
    local most = max(horizon, interval[j]) - starts[j]
    if first > 0 then most = horizon * min(1, horizon / first) end
    if served >= 0 and first > 0 then most = entitled - served
    elseif served >= 0 then most = max(most, entitled - served) end
    granted = min(granted, math.floor(most / interval[j]))
  end
  granted = max(granted, 1)
  if within >= 0 then
    -- Nobody waits for longer, so that a later slot would lapse, and so would those of a request that has too few.
    for j = 1, rates do granted = min(granted, math.floor((within - starts[j]) / interval[j]) + 1) end
    granted = max(granted - (granted + have) % unit, 0)
  end
end
if granted > 0 then
  local last = starts[1] + (granted - 1) * interval[1]
  for j = 2, rates do last = max(last, starts[j] + (granted - 1) * interval[j]) end
  for j = 1, rates do free[j] = max(starts[j] + granted * interval[j], last - tolerance[j] + interval[j]) end
end

local keep = 0
for j = 1, rates do keep = max(keep, max(free[j], paused) + tolerance[j]) end
local numbers = string.rep(' %.17g', rates + 3)
local value = string.format('%s %.0f' .. numbers, form, now, paused, entitled, unused, unpack(free))
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', min(math.ceil(keep / 1000) + 1000, 1e14))
-- A status is a line, which clients read faster than a string with a length.
return redis.status_reply(value .. string.format('; %d' .. string.rep(' %.17g', rates), granted, unpack(starts)))
"""
)
SLOTS = Script.of(TEXT)
SHA = SLOTS.sha
_FORM = "aiorate/1"  # the first word of a value, as in the script
_pack = Struct("<10d").pack


@dataclass(slots=True)
class Question:
    """A client's question. All durations are in us."""

    want: int = 0
    """Slots; the script may assign fewer, but at least one unless ``within`` is given."""
    charge: Permits = 0
    """Permits that were used without a slot."""
    pause: float = -1
    """How long to pause all processes from now; 0: a pause is over, -1: nothing changed."""
    back: int = 0
    """Slots that nobody here will use; they come back if nobody has asked since."""
    horizon: float = 0
    """How far ahead all processes together aim to book."""
    served: float = -1
    """How much it has had of what each busy client was entitled to; -1: it is new."""
    age: float = 0
    """How long ago the client was told the value that it remembers."""
    remembered: str = ""
    """That value."""
    within: float = -1
    """How far ahead a slot may be, in which case the script may assign none; -1: any slot is useful."""
    unit: int = 1
    """The size of a request: slots are useful in multiples of it, if ``within`` is not -1."""
    have: int = 0
    """The slots of an incomplete multiple that the client holds already."""

    def words(self, limits: bytes) -> list[str | bytes]:
        """The script's arguments, with what `limits_of` returns. Few and long, because a client takes its time for each."""
        charge = min(count_of(self.charge), MOST)
        numbers = self.want, charge, self.pause, self.back, self.horizon, self.served, self.age, self.within, self.unit, self.have
        return [_pack(*numbers) + limits, self.remembered]


class Answer(NamedTuple):
    """The script's answer. All durations are in us, from the instant at which it ran."""

    value: str
    """The key's value, to be remembered."""
    paused: float
    """How long all processes are paused."""
    entitled: float
    """What each busy client was entitled to since the beginning."""
    unused: float
    """How many permits nobody used since the beginning."""
    nexts: list[float]
    """When the next free slot of each rate is."""
    granted: int
    """How many slots it assigned."""
    starts: list[float]
    """When the first of them is, by each rate. It is at the latest of these, and so are those after it."""


def limits_of(rates: tuple[Rate, ...], bursts: tuple[int, ...]) -> bytes:
    """Interval and tolerance of each rate, as the script takes them."""
    numbers: list[float] = []
    for rate, burst in zip(rates, bursts, strict=True):
        interval = rate.period_ns / (rate.permits * 1_000)
        numbers += [interval, (burst - 1) * interval]
    return Struct(f"<{len(numbers)}d").pack(*numbers)


def read_answer(reply: object, rates: int) -> Answer:
    """The script's reply, bytes or text. Raises `BadAnswer` for anything else."""
    text = text_of(reply)
    value, _, slots = text.rpartition("; ")
    try:
        mark, _, *left = value.split(" ")
        granted, *first = slots.split(" ")
        numbers = [*map(float, left), *map(float, first)]
        near = sum(map(abs, numbers)) < FAR  # and none is infinite, or no number
        if mark == _FORM and len(left) == rates + 3 and len(first) == rates and near and (count := int(granted)) >= 0:
            return Answer(value, numbers[0], numbers[1], numbers[2], numbers[3:-rates], count, numbers[-rates:])
    except ValueError:
        pass
    raise bad_answer(text)
