"""The command line: reads the arguments and passes them to a command. Knows nothing of what a command does.

A command is a function that adds its parser and names its handler. ``main`` returns the exit code.
"""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from typing import TYPE_CHECKING

from aiorate._demo import strategies
from aiorate.meter import COMPILED
from aiorate.rate import NS_PER_SECOND, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Commands = Any  # what add_subparsers() returns has no public name

__all__ = ["main"]

_ABOUT_RATES = "such as 50/s, 3/250ms, 600/min or 20 (per second)"
_STRATEGY = "TokenPool"
_AT_ONCE = 20  # requests
_SYSTEM = os.name
_EXTRAS = ("aiohttp", "httpx2", "plotext", "redis", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 2 for wrong arguments, 130 for Ctrl-C, 141 for a closed output pipe."""
    parser = argparse.ArgumentParser(prog="python -m aiorate", description="Rate limiting for asyncio and trio: see it work.")
    parser.add_argument("--version", action="version", version=f"aiorate {_version()} ({'compiled' if COMPILED else 'pure Python'} meter)")
    commands = parser.add_subparsers(title="commands", metavar="")
    for add in _COMMANDS:
        add(commands)
    try:
        known, unknown = parser.parse_known_args(arguments)
        options = vars(known)
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], options)}")
    except SystemExit as stop:  # argparse has printed the help, the version or an error
        return int(stop.code or 0)
    handler = options.pop("handler", None)
    if handler is None:
        parser.print_help()
        return 0
    try:
        code: int = handler(**options)
        print(end="", flush=True)  # also if standard output was closed before the start
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if not _is_closed_pipe(error):
            raise
        # The rest of the buffer cannot be written either. Without this, the interpreter would complain at its exit.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
    return code


def _is_closed_pipe(error: OSError) -> bool:
    """Whether the reader of standard output has gone, as in ``| head -1``. Windows calls that an invalid argument."""
    return isinstance(error, BrokenPipeError) or (_SYSTEM == "nt" and error.errno == errno.EINVAL)


_MEANT = {
    **dict.fromkeys(("--limit", "--max-rate", "--rps", "--per-second", "--speed"), "--rate"),
    **dict.fromkeys(("--duration", "--time", "--length"), "--seconds"),
    **dict.fromkeys(("--workers", "--concurrency", "--connections", "-c"), "--clients"),
    **dict.fromkeys(("--count", "--number", "--total", "-n"), "--requests"),
    **dict.fromkeys(("--algorithm", "--limiter", "--method"), "--strategy"),
    **dict.fromkeys(("--log", "--file", "--input", "--csv"), "--arrivals"),
}


def _meant(argument: str, options: Mapping[str, object]) -> str:
    """What an argument that does not exist probably means, for the error."""
    option = _MEANT.get(argument.partition("=")[0], "")
    if option.removeprefix("--") in options or option == "--arrivals":
        return f" (did you mean {option}?)"
    try:
        return f" (did you mean --rate {Rate.parse(argument)}?)"
    except ValueError:
        return ""


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="send real requests to a local server, without and with a limiter, and compare with the guarantee",
        description="Start a local server that notes every arrival. Send requests to it through httpx2 and aiohttp, first without and"
        " then with a limiter. Compare the arrivals with the limiter's guarantee. The exit code is 1 if the guarantee was broken.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    # A slow machine, too, sends more than that without a limiter.
    _add_rate_and_strategy(parser, None, "such as 50/s, 3/250ms, 600/min or 20 (per second); by default 50/s, and 200/s for processes")
    parser.add_argument("--seconds", type=_between(0.2, 3_600.0, float), default=4.0, help="length of the run with the limiter")
    parser.add_argument("--clients", type=_between(2, 1_000, int), default=32, help="requests at a time, half of them by each library")
    parser.add_argument("--port", type=_between(0, 65_535, int), default=0, help="the server's port; 0: any free port")
    parser.add_argument(
        "--processes",
        type=_between(2, 64, int),
        default=argparse.SUPPRESS,
        help="the number of client processes, which share one limit by time slots; --strategy is ignored",
    )
    parser.add_argument(
        "--server", metavar="URL", default=argparse.SUPPRESS, help="with --processes: the Valkey or Redis to use, such as redis://localhost"
    )
    parser.set_defaults(handler=_demo)


def _demo(strategy: str, rate: Rate | None = None, processes: int | None = None, server: str | None = None, **options: object) -> int:
    if processes is None and server is not None:
        print("aiorate demo: --server is for --processes, which share a limit through it", file=sys.stderr)
        return 2
    try:
        if processes is not None:
            from aiorate._demo import processes as several

            # The strategy is the store's own.
            return several.run(rate=rate or Rate(200), processes=processes, url=server, **options)  # type: ignore[arg-type]  # as parsed
        from aiorate._demo import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRAS:
            raise
        print(f'aiorate demo needs {error.name}, which is not installed: pip install "aiorate[demo]"', file=sys.stderr)
        return 2
    return run.run(rate=rate or Rate(50), strategy=strategy, **options)  # type: ignore[arg-type]  # as parsed


def _add_simulate(commands: Commands) -> None:
    from aiorate._simulate.options import add_options

    parser = commands.add_parser(
        "simulate",
        help="show what a limit would do, on a virtual clock, without waiting: to requests at one instant, or to your own traffic",
        description="Make all requests at instant 0 of a virtual clock, and print the instants at which they are granted. Or play the"
        " requests of an access log, and print how long they would have waited. Nothing waits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_rate_and_strategy(parser, "10/s", strategy=None)
    most = _between(1, 1_000_000, int)
    parser.add_argument(
        "--requests", type=most, default=argparse.SUPPRESS, help=f"number of requests; by default {_AT_ONCE}, and 10000 at random"
    )
    parser.add_argument("--permits", type=most, default=1, help="permits for each request")
    add_options(parser, most)
    parser.set_defaults(handler=_simulate)


def _simulate(rate: Rate, permits: int, strategy: str | None = None, requests: int | None = None, **options: object) -> int:
    from aiorate._simulate.options import needs_arrivals, read_options

    if "arrivals" not in options:
        option = needs_arrivals(options)
        if option is None:
            return _simulate_at_once(rate, strategy or _STRATEGY, requests or _AT_ONCE, permits)
        print(f"aiorate simulate: {option} needs --arrivals: an access log, a CSV file or poisson:50/s", file=sys.stderr)
        return 2
    from aiorate._simulate import command

    try:
        asked = read_options(rate, strategy, requests, permits, **options)  # type: ignore[arg-type]  # as parsed
    except ValueError as error:
        print(f"aiorate simulate: {error}", file=sys.stderr)
        return 2
    return command.run(asked)


def _simulate_at_once(rate: Rate, strategy: str, requests: int, permits: int) -> int:
    from aiorate.testing import simulate

    try:
        scheduler = strategies.make(strategy, rate, origin=0)
        text = f"{scheduler!r}\n\nrequest   granted at (s)   after the one before (s)"
        instants = simulate(scheduler, [(0, permits)] * requests)
    except ValueError as error:
        print(f"aiorate simulate: {error}", file=sys.stderr)
        return 2
    print(text)
    for number, (before, instant) in enumerate(zip([0, *instants], instants, strict=False), 1):
        print(f"{number:7} {instant / NS_PER_SECOND:16.6f} {(instant - before) / NS_PER_SECOND:26.6f}")
    return 0


def _add_rate_and_strategy(
    parser: argparse.ArgumentParser, rate: str | None, about: str = _ABOUT_RATES, strategy: str | None = _STRATEGY
) -> None:
    parser.add_argument("--rate", type=_rate, default=argparse.SUPPRESS if rate is None else rate, help=about)
    known = f"one of {', '.join(strategies.NAMES)}"
    if strategy is None:
        parser.add_argument("--strategy", type=_strategy, default=argparse.SUPPRESS, help=f"{known} (default: {_STRATEGY})")
    else:
        parser.add_argument("--strategy", type=_strategy, default=strategy, help=known)


def _rate(text: str) -> Rate:
    from aiorate.calendar_rate import CalendarRate

    try:
        return CalendarRate.of(text)  # months too: a CalendarWindow has them
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _strategy(text: str) -> str:
    for name in strategies.NAMES:
        if name.lower() == text.lower():
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not a strategy; there are {', '.join(strategies.NAMES)}")


def _between(least: float, most: float, kind: type[int] | type[float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            whole = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is not a {whole} from {least:g} to {most:g}")
        return value

    return convert


def _version() -> str:
    from importlib.metadata import version

    return version("aiorate")


_COMMANDS = (_add_demo, _add_simulate)
