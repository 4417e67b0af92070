"""The command line: reads the arguments and passes them to a command."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import distributions
from typing import TYPE_CHECKING

import aiorate
from aiorate._meter import COMPILED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiorate import Scheduler


# With parameters that show what each is for.
STRATEGIES: dict[str, Callable[[str], Scheduler]] = {
    "TokenPool": aiorate.TokenPool,
    "TokenBucket": lambda rate: aiorate.TokenBucket(rate, burst=10),
    "SlidingWindow": aiorate.SlidingWindow,
    "CalendarWindow": lambda rate: aiorate.CalendarWindow(rate, "UTC", origin=0),
    "AllOf": lambda rate: aiorate.AllOf(aiorate.SlidingWindow(rate), aiorate.TokenBucket(rate, burst=10)),
    "TicksAccumulator": aiorate.TicksAccumulator,
    "BurstCompensation": aiorate.BurstCompensation,
    "BurstRatio": lambda rate: aiorate.BurstRatio(rate, ratio=1.5),
    "SmoothBursty": aiorate.SmoothBursty,
    "SmoothWarmingUp": lambda rate: aiorate.SmoothWarmingUp(rate, warmup=1),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 130 for Ctrl-C. Raises SystemExit(2) for wrong arguments."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    command, rate, strategy, burst = (options.pop(name, None) for name in ("command", "rate", "strategy", "burst"))
    if command is None:
        parser.print_help()
        return 0
    try:
        scheduler = STRATEGIES[strategy](rate) if burst is None else aiorate.TokenBucket(rate, burst=burst)
        code: int = import_module(f"aiorate._tools.{command}").run(scheduler, **options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        parser.error(f'{error}. The demo needs: pip install "aiorate-limiter[demo]"')
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aiorate", description="Rate limiting for asyncio and trio: see it work.")
    version = next((each.version for each in distributions(name="aiorate-limiter")), "unknown")
    meter = "compiled" if COMPILED else "pure Python"
    parser.add_argument("--version", action="version", version=f"aiorate {version} ({meter} meter)")
    commands = parser.add_subparsers(title="commands", metavar="", dest="command")

    def command(name: str, what: str, rate: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=what, description=what)
        made.add_argument("--rate", default=rate, help=f"such as 50/s, 3/250ms, 600/min or 20 (per second) (default: {rate})")
        names = f"{', '.join(STRATEGIES)} (default: TokenPool)"
        made.add_argument("--strategy", choices=STRATEGIES, default="TokenPool", metavar="NAME", help=names)
        return made

    what = "send real requests to a local server, without and with a limiter; the exit code is 1 if the guarantee was broken"
    demo = command("demo", what, "50/s")
    demo.add_argument("--seconds", type=float, default=4.0, help="length of the run with the limiter (default: 4)")

    what = "show how many requests that you know a limit would let through at once, hold up or refuse, without waiting"
    simulate = command("simulate", what, "10/s")
    simulate.add_argument("file", nargs="?", default="-", metavar="FILE", help="arrivals in seconds, one a line; or standard input")
    simulate.add_argument("--burst", type=int, metavar="N", help="the burst of a TokenBucket, which is then the strategy")
    simulate.add_argument("--max-wait", type=float, metavar="SECONDS", help="refuse requests that would wait longer")
    return parser
