"""The script that assigns time slots, and how it is asked and answers. One key, one round trip, by the server's clock alone.

The value of the key is text: ``aiorate/1``, the server's time (us since the epoch) at which it was written, how long a pause went on
then, and for each rate how far ahead its next free slot was: all in us, so that nothing depends on what the clock says, only on
how far it moves. Where it went back, no time has passed. A client remembers the value that it was told last, and sends it along.

The number in the first word is the version of the value. Change it whenever the value changes in any way: a release that meets
another number leaves the value alone and answers ``VERSION``, which is an outage.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate.rate import Rate

__all__ = ["SHA", "TEXT", "Answer", "BadAnswer", "Question", "limits_of", "read_answer"]

TEXT = """\
-- aiorate: assigns time slots at one or several rates, by GCRA. All durations are in microseconds.
-- ARGV[1]: want, charge, pause (-1: none, 0: over), give back, horizon, age, then interval and tolerance of each rate.
-- ARGV[2]: the value that the client was told last, so long ago; empty if there was none.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, min = math.max, math.min
local want, charge, pause, back, horizon, age, limits = string.match(ARGV[1], '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.+)$')
local remembered = ARGV[2]
want, charge, pause, back = tonumber(want), tonumber(charge), tonumber(pause), tonumber(back)
horizon, age = tonumber(horizon), tonumber(age)

local form = 'aiorate/1'

-- The time of a value, how long a pause went on then, and how far ahead the next free slot of each rate was.
local function read(text)
  local written, pause, rest = string.match(text, '^' .. form .. ' (%d+) (%S+) (.+)$')
  local values = {}
  for word in string.gmatch((pause or '') .. ' ' .. (rest or ''), '%S+') do
    local value = tonumber(word)
    if not (value and value > -1e18 and value < 1e18) then return nil, nil, {} end
    values[#values + 1] = value
  end
  return tonumber(written), table.remove(values, 1), values
end

local stored = redis.call('GET', KEYS[1])
local written, pausing, state
local told, held, known = nil, 0, nil
local found = stored and string.match(stored, '^aiorate/%S*')
if found and found ~= form then
  local other = 'VERSION the key ' .. KEYS[1] .. ' was written by another release of aiorate, as ' .. found
  return redis.error_reply(other .. '; this release reads ' .. form .. '. Run one release in all processes')
end
if stored then written, pausing, state = read(stored) end
if remembered ~= '' and stored ~= remembered then told, held, known = read(remembered) end
if stored and not (written and pausing and state[1]) then
  return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' holds a value that is not of aiorate')
end
-- A clock that went back has not moved.
local elapsed = stored and max(0, now - written) or age
if not stored then pausing = held end
local paused = pausing - elapsed

local rates, interval, tolerance, free = 0, {}, {}, {}
for long, idle in string.gmatch(limits, '(%S+) (%S+)') do
  rates = rates + 1
  interval[rates], tolerance[rates] = tonumber(long), tonumber(idle)
  local value, heard = -tolerance[rates], known and known[rates]
  if stored then
    if state[rates] then value = max(value, state[rates] - elapsed) end
    -- What the client was told, and this server has lost.
    if heard then value = max(value, heard - max(0, now - told)) end
  elseif heard and heard - age > value then
    -- All is lost. The other clients may have booked as far ahead again.
    value = heard - age + horizon
  end
  -- Nothing accrues before a pause is over.
  if pausing > 0 then value = max(value, min(paused, 0)) end
  free[rates] = value
end

if back > 0 and stored == remembered then
  for j = 1, rates do free[j] = free[j] - back * interval[j] end
end
for j = 1, rates do free[j] = free[j] + charge * interval[j] end
if pause > 0 then paused = max(paused, pause) elseif pause == 0 then paused = 0 end
paused = max(paused, 0)

local first, granted, starts = 0, 0, {}
for j = 1, rates do first = j == 1 and free[j] or max(first, free[j]) end
for j = 1, rates do starts[j] = max(free[j], first - tolerance[j]) end
if want > 0 and paused == 0 then
  granted = want
  for j = 1, rates do
    local most
    if first > 0 then most = horizon * min(1, horizon / first) else most = max(horizon, interval[j]) - starts[j] end
    granted = min(granted, math.floor(most / interval[j]))
  end
  granted = max(granted, 1)
  local last = starts[1] + (granted - 1) * interval[1]
  for j = 2, rates do last = max(last, starts[j] + (granted - 1) * interval[j]) end
  for j = 1, rates do free[j] = max(starts[j] + granted * interval[j], last - tolerance[j] + interval[j]) end
end

local keep = 0
for j = 1, rates do keep = max(keep, max(free[j], paused) + tolerance[j]) end
local value = string.format('%s %.0f %.17g' .. string.rep(' %.17g', rates), form, now, paused, unpack(free))
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', min(math.ceil(keep / 1000) + 1000, 1e14))
-- A status is a line, which clients read faster than a string with a length.
return redis.status_reply(value .. string.format('; %d' .. string.rep(' %.17g', rates), granted, unpack(starts)))
"""
SHA = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
_SHOWN = 80
_FORM = "aiorate/1"  # the first word of a value, as in the script
_FAR = 1e18  # us


class BadAnswer(Exception):
    """The store answered something that the script never says."""


@dataclass(slots=True)
class Question:
    """What a client asks for. All durations are in us."""

    want: int = 0
    """Slots; the script may assign fewer, but at least one."""
    charge: int = 0
    """Permits that were used without a slot."""
    pause: float = -1
    """How long to pause all processes from now; 0: no longer, -1: as it is."""
    back: int = 0
    """Slots that nobody here will use; they come back if nobody has asked since."""
    horizon: float = 0
    """How far ahead all processes together aim to book."""
    age: float = 0
    """How long ago the client was told the value that it remembers."""
    remembered: str = ""
    """That value."""

    def words(self, limits: str) -> list[str]:
        """The script's arguments, with what `limits_of` returns. Few and long, because a client takes its time for each."""
        return [f"{self.want} {self.charge} {self.pause} {self.back} {self.horizon} {self.age} {limits}", self.remembered]


class Answer(NamedTuple):
    """What the script says. All durations are in us, from the instant at which it ran."""

    value: str
    """The key's value, to be remembered."""
    paused: float
    """How long nobody is to be granted anything."""
    nexts: list[float]
    """When the next free slot of each rate is."""
    granted: int
    """How many slots it assigned."""
    starts: list[float]
    """When the first of them is, by each rate. It is at the latest of these, and so are those after it."""


def limits_of(rates: Sequence[Rate], bursts: Sequence[int]) -> str:
    """Interval and tolerance of each rate, as the script takes them."""
    words: list[str] = []
    for rate, burst in zip(rates, bursts, strict=True):
        interval = rate.period_ns / (rate.permits * 1_000)
        words += [repr(interval), repr((burst - 1) * interval)]
    return " ".join(words)


def read_answer(reply: object, rates: int) -> Answer:
    """The script's reply, bytes or text. Raises `BadAnswer` for anything else."""
    text = _text(reply)
    value, _, slots = text.rpartition("; ")
    try:
        mark, _, *left = value.split(" ")
        granted, *first = slots.split(" ")
        paused, *nexts = map(float, left)
        starts = list(map(float, first))
        near = sum(map(abs, (paused, *nexts, *starts))) < _FAR  # and none is infinite, or no number
        if mark == _FORM and len(nexts) == len(starts) == rates and near:
            return Answer(value, paused, nexts, int(granted), starts)
    except ValueError:
        pass
    raise BadAnswer(f"the store answered {text[:_SHOWN]!r} to aiorate's script")


def _text(reply: object) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
