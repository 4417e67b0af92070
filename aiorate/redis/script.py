"""The script that assigns time slots, and how it is asked and answers. One key, one round trip, by the server's clock alone.

The value of the key is text: ``aiorate``, the server's time (us since the epoch) at which it was written, how long a pause went on
then, and for each rate how far ahead its next free slot was: all in us, so that nothing depends on what the clock says, only on
how far it moves. Where it went back, no time has passed. A client remembers the value that it was told last, and sends it along.
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
-- ARGV: want, charge, pause (-1: none, 0: over), give back, horizon, remembered value, its age, then for each rate interval and tolerance
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local want, charge, pause, back = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local horizon, remembered, age = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local rates = math.floor((#ARGV - 7) / 2)
local max, min = math.max, math.min

local function read(text)
  if string.sub(text, 1, 8) ~= 'aiorate ' then return nil end
  local values = {}
  for word in string.gmatch(string.sub(text, 9), '%S+') do
    local value = tonumber(word)
    if not value then return nil end
    values[#values + 1] = value
  end
  return #values > 2 and values or nil
end

local stored = redis.call('GET', KEYS[1])
local state, known = stored and read(stored), read(remembered)
if stored and not state then
  return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' holds a value that is not of aiorate')
end
-- A clock that went back has not moved.
local elapsed = state and max(0, now - state[1]) or 0
local source = state or known
local paused = 0
if state then paused = state[2] - elapsed elseif known then paused = known[2] - age end

local interval, tolerance, free = {}, {}, {}
for j = 1, rates do
  interval[j], tolerance[j] = tonumber(ARGV[6 + 2 * j]), tonumber(ARGV[7 + 2 * j])
  local idle = -tolerance[j]
  free[j] = idle
  if state then
    if state[2 + j] then free[j] = max(idle, state[2 + j] - elapsed) end
    -- What another client was told and this server has lost.
    if known and known[2 + j] then free[j] = max(free[j], known[2 + j] - max(0, now - known[1])) end
  elseif known and known[2 + j] and known[2 + j] - age > idle then
    -- All is lost. The others may have booked as far ahead again.
    free[j] = known[2 + j] - age + horizon
  end
  -- Nothing accrues before a pause is over.
  if source and source[2] > 0 then free[j] = max(free[j], min(paused, 0)) end
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
    if first > 0 then most = horizon * min(1, horizon / first) else most = horizon - starts[j] end
    granted = min(granted, math.floor(most / interval[j]))
  end
  granted = max(granted, 1)
  local last = starts[1] + (granted - 1) * interval[1]
  for j = 2, rates do last = max(last, starts[j] + (granted - 1) * interval[j]) end
  for j = 1, rates do free[j] = max(starts[j] + granted * interval[j], last - tolerance[j] + interval[j]) end
end

local value, keep = string.format('aiorate %.0f %.17g', now, paused), 0
local slots = string.format(' %d', granted)
for j = 1, rates do
  value = value .. string.format(' %.17g', free[j])
  slots = slots .. string.format(' %.17g', starts[j])
  keep = max(keep, max(free[j], paused) + tolerance[j])
end
-- Gone a second after a new value would say the same.
redis.call('SET', KEYS[1], value, 'PX', string.format('%.0f', min(math.ceil(keep / 1000) + 1000, 1e14)))
return value .. slots
"""
SHA = sha1(TEXT.encode(), usedforsecurity=False).hexdigest()
_SHOWN = 80
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
    remembered: str = ""
    """The value that the client was told last."""
    age: float = 0
    """How long ago that was."""

    def words(self, limits: Sequence[str]) -> list[str]:
        """The script's arguments, with those that `limits_of` returns."""
        return [
            str(self.want),
            str(self.charge),
            repr(self.pause),
            str(self.back),
            repr(self.horizon),
            self.remembered,
            repr(self.age),
            *limits,
        ]


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


def limits_of(rates: Sequence[Rate], bursts: Sequence[int]) -> list[str]:
    """Interval and tolerance of each rate."""
    words: list[str] = []
    for rate, burst in zip(rates, bursts, strict=True):
        interval = rate.period_ns / (rate.permits * 1_000)
        words += [repr(interval), repr((burst - 1) * interval)]
    return words


def read_answer(reply: object, rates: int) -> Answer:
    """The script's reply, bytes or text. Raises `BadAnswer` for anything else."""
    text = _text(reply)
    try:
        words = text.split(" ")
        numbers = [float(word) for word in words[2:]]
        if words[0] == "aiorate" and len(words) == 4 + 2 * rates and all(-_FAR < number < _FAR for number in numbers):
            value = " ".join(words[: 3 + rates])
            return Answer(value, numbers[0], numbers[1 : 1 + rates], int(words[3 + rates]), numbers[2 + rates :])
    except ValueError:
        pass
    raise BadAnswer(f"the store answered {text[:_SHOWN]!r} to aiorate's script")


def _text(reply: object) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
