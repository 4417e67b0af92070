"""What the scripts have in common: how they find the value of their key, the numbers that they take, and how their replies are read."""

from __future__ import annotations

from aiorate._store.failures import BadAnswer

__all__ = ["FAR", "MOST", "bad_answer", "text_of", "value_of"]

FAR = 1e18
"""us: no duration in a reply is longer."""
MOST = 10**300
"""The scripts cut a debt off long before."""
_SHOWN = 80


def value_of(pattern: str, owner: str, foreign: str = "") -> str:
    """The lines of a script that read the value of its key as ``text`` and ``stored``, and what the client remembers as ``known``.

    ``pattern`` finds the first word of a value of any release, ``foreign`` are lines for one of another kind, and ``owner`` is whose
    value it should be. Above them are ``form``, the first word of this release; ``read``, a function; ``remembered`` and ``pause``.
    """
    return f"""\
local text = redis.call('GET', KEYS[1])
local found = text and string.match(text, '{pattern}')
if found and found ~= form then
{foreign}\
  local other = 'VERSION the key ' .. KEYS[1] .. ' was written by another release of aiorate, as ' .. found
  return redis.error_reply(other .. '; this release reads ' .. form .. '. Run one release in all processes')
end
local stored = text and read(text)
-- The end of a pause mends a value of aiorate that cannot be read.
if text and not stored and not (found and pause == 0) then
  return redis.error_reply('WRONGTYPE the key ' .. KEYS[1] .. ' holds a value that is not of {owner}')
end
local known = remembered ~= '' and remembered ~= text and read(remembered) or nil
"""


def text_of(reply: object) -> str:
    """A script's reply, which is bytes or text, as text."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def bad_answer(text: str) -> BadAnswer:
    """The error for a reply that makes no sense."""
    return BadAnswer(f"the store answered {text[:_SHOWN]!r} to aiorate's script")
