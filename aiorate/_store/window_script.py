"""The script that counts the permits of a window of the calendar, its questions and its answers. One key, one round trip.

Windows are by the server's clock. The client knows the calendar: it names the ends of the windows around the present, and the script
picks one by its time. If none fits, because the client's idea of the time is wrong, the answer is the time, and nothing is changed.

The value of the key is text: ``aiorate-window/1``, the end of its window (us since the epoch, as all instants), when the count began,
how often it was written, how many permits were taken before the count began, and since then, how long a pause went on when it was
written, until when nothing is granted, and when it was written. The count begins with the window, and again where the server has lost
state that a client remembers: then nothing is granted for a second, in which the others tell what they remember.

The number in the first word is the version of the value, as in ``script.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from aiorate._schedulers.amounts import count_of
from aiorate._store.asking import Script
from aiorate._store.scripting import FAR, MOST, bad_answer, text_of, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._schedulers.amounts import Permits

__all__ = ["WINDOWS", "WindowAnswer", "WindowQuestion", "read_window_answer"]

_TEXT = (
    """\
-- aiorate: counts the permits of windows of the calendar. All times are in microseconds.
-- ARGV[1]: want, least, at once, charge, pause (-1: none, 0: over), give back, end of the window of those, permits of a window, longest
-- window, age, then an instant and the ends of the windows after it. Each is a little-endian double.
-- ARGV[2]: the value that the client was told last, an age ago; empty if there was none.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local max, min, floor, ceil = math.max, math.min, math.floor, math.ceil
local words = {struct.unpack('<' .. string.rep('d', #ARGV[1] / 8), ARGV[1])}
local want, least, once, charge, pause, back, whose, most, longest, age = unpack(words)
local remembered = ARGV[2]
-- A longer duration counts for this one: 317 years.
local far = 1e16
-- How long clients have to tell what they remember, after state was lost.
local settling = 1000000

local form = 'aiorate-window/1'
local names = {'ends', 'born', 'writes', 'before', 'since', 'paused', 'settled', 'written'}

local function read(text)
  local rest = string.match(text, '^aiorate%-window/1 (.+)$')
  if not rest then return nil end
  local state, place = {}, 0
  for word in string.gmatch(rest, '%S+') do
    place = place + 1
    local value = tonumber(word)
    if not (names[place] and value and value > -1e18 and value < 1e18) then return nil end
    state[names[place]] = value
  end
  return place == #names and state or nil
end

"""
    + value_of("^aiorate%-window/%S*", "a CalendarWindow of aiorate")
    + """\
local last = stored or known

local state = stored
-- A clock that went back stays in its window. If it went back by more, it was wrong before, and the count is kept in another window.
if not stored or now >= stored.ends or now < stored.ends - 2 * longest then
  local ends
  if words[11] <= now then
    for place = #words, 12, -1 do
      if words[place] > now then ends = words[place] end
    end
  end
  if not ends then return redis.status_reply(string.format('%s %.0f; -1', form, now)) end
  local owed = last and last.before + last.since or 0
  -- Each window since has paid of a debt what a window has.
  if last and last.ends <= now then owed = max(0, owed - most * (1 + floor((now - last.ends) / longest))) end
  state = {ends = ends, born = now, writes = 0, before = owed, since = 0, settled = 0}
  if not stored and known and known.ends > now then state.settled = now + settling end
end

-- What the client was told, and this server has lost.
if known and known.ends == state.ends and (known.born ~= state.born or known.writes > state.writes) then
  local taken = known.before + known.since
  if known.born == state.born then
    -- An older copy of the value: the count begins again from what is known.
    state.before, state.since, state.born = max(state.before + state.since, taken), 0, now
    state.writes, state.settled = known.writes, now + settling
  else
    state.before = max(state.before, taken)
    if state.settled == 0 then state.settled = now + settling end
  end
end

if back > 0 and whose == state.ends then state.since = max(state.since - back, -state.before) end
state.since = min(state.since + charge, far)

local paused = 0
if last then paused = max(0, last.paused - (stored and max(0, now - stored.written) or age)) end
if pause > 0 then paused = max(paused, min(pause, far)) elseif pause == 0 then paused = 0 end

local granted, left = 0, most - state.before - state.since
if want > 0 and paused == 0 and now >= state.settled then
  -- A process takes a part of what is left, so that others have some, and little is lost with it.
  granted = min(want, left, max(ceil(left / 8), least, once))
  if granted < max(least, 1) then granted = 0 end
end
state.since = state.since + granted
state.writes = state.writes + 1
state.paused, state.written = paused, now

local over = state.before + state.since - most
local keep = max(state.ends - now + max(0, ceil(over / most)) * longest, paused)
local value = form
for _, name in ipairs(names) do value = value .. string.format(' %.17g', state[name]) end
-- Gone a second after it has no effect.
redis.call('SET', KEYS[1], value, 'PX', min(ceil(keep / 1000) + 1000, 1e14))
return redis.status_reply(value .. string.format('; %d', granted))
"""
)
WINDOWS = Script.of(_TEXT)
_FORM = "aiorate-window/1"  # the first word of a value, as in the script


@dataclass(slots=True)
class WindowQuestion:
    """A client's question. All times are in us, and instants are since the epoch."""

    want: int = 0
    """Permits; the script may assign fewer."""
    least: int = 0
    """Fewer than this are of no use."""
    at_once: int = 0
    """How many are wanted at once or never, and so without regard to the share of others."""
    charge: Permits = 0
    """Permits that were used without asking."""
    pause: float = -1
    """How long to pause all processes from now; 0: a pause is over, -1: nothing changed."""
    back: int = 0
    """Permits that nobody here will use."""
    window: int = 0
    """The end of the window of those."""
    age: float = 0
    """How long ago the client was told the value that it remembers."""
    remembered: str = ""
    """That value."""

    def words(self, permits: int, longest: float, ends: Sequence[float]) -> list[str | bytes]:
        """The script's arguments: with the permits of a window, the longest window, an instant, and the ends of windows after it."""
        charge = min(count_of(self.charge), MOST)
        asked = self.want, self.least, self.at_once, charge, self.pause, self.back, self.window
        numbers = [*asked, permits, longest, self.age, *ends]
        return [Struct(f"<{len(numbers)}d").pack(*numbers), self.remembered]


class WindowAnswer(NamedTuple):
    """The script's answer. All times are in us."""

    value: str
    """The key's value, to be remembered; empty if no window was named that goes on now."""
    now: int
    """The server's time, since the epoch."""
    granted: int
    """How many permits it assigned; -1: no window was named that goes on now, and nothing is changed."""
    ends: int = 0
    """The end of the window, since the epoch."""
    taken: int = 0
    """The permits of it that are taken."""
    paused: float = 0.0
    """How long all processes are paused."""
    settling: float = 0.0
    """How long nothing is granted, because state was lost."""


def read_window_answer(reply: object) -> WindowAnswer:
    """The script's reply, bytes or text. Raises `BadAnswer` for anything else."""
    text = text_of(reply)
    value, _, count = text.rpartition("; ")
    form, *words = value.split(" ")
    try:
        numbers, granted = [*map(float, words)], int(count)
        if form == _FORM and sum(map(abs, numbers)) < FAR:  # and none is infinite, or no number
            if granted == -1 and len(numbers) == 1:
                return WindowAnswer("", int(numbers[0]), -1)
            if granted >= 0 and len(numbers) == 8:  # as many as the script has names
                ends, _, _, before, since, paused, settled, written = numbers
                left = max(settled - written, 0.0)
                return WindowAnswer(value, int(written), granted, int(ends), int(before + since), paused, left)
    except ValueError:
        pass
    raise bad_answer(text)
