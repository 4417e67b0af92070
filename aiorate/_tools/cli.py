"""The command line: reads the arguments and passes them to a command. Knows nothing of what a command does."""

from __future__ import annotations

import argparse
import errno
import math
import os
import sys
from typing import TYPE_CHECKING

from aiorate._meter import COMPILED
from aiorate._tools import strategies

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_SYSTEM = os.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 130 for Ctrl-C, 141 for a closed output pipe. Raises SystemExit(2) for wrong arguments."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    command = options.pop("command", None)
    try:
        if options.pop("version"):
            print(f"aiorate {_version()} ({'compiled' if COMPILED else 'pure Python'} meter)")
            code = 0
        elif command is None:
            parser.print_help()
            code = 0
        else:
            code = command(**options)
        print(end="", flush=True)  # so that a closed pipe is noticed here
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # The reader of standard output has gone, as in ``| head -1``. Windows calls that an invalid argument.
        if not isinstance(error, BrokenPipeError) and not (_SYSTEM == "nt" and error.errno == errno.EINVAL):
            raise
        # The rest of the buffer cannot be written either. Without this, the interpreter would complain at its exit.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aiorate", description="Rate limiting for asyncio and trio: see it work.")
    parser.add_argument("--version", action="store_true", help="print the version, and which meter is in use")
    commands = parser.add_subparsers(title="commands", metavar="")

    demo = commands.add_parser(
        "demo",
        help="send real requests to a local server, without and with a limiter, and compare with the guarantee",
        description="Start a local server that refuses what is too fast. Send requests to it through httpx2 and aiohttp, first without"
        " and then with a limiter. The exit code is 1 if the guarantee was broken.",
    )
    _add_limit(demo, "50/s")
    demo.add_argument("--seconds", type=_number(float, 0.2), default=4.0, help="length of the run with the limiter (default: 4)")
    demo.set_defaults(command=_demo)

    simulate = commands.add_parser(
        "simulate",
        help="show what a limit would do to requests that you know, without waiting",
        description="Read one arrival per line: a time, as seconds or as 2026-01-31T12:00:00, and after it the permits, if it is more"
        " than one. Print how many requests a limit would have let through at once, held up or refused. Without arrivals, make requests"
        " at one instant, and print when each is granted.",
    )
    arrivals = simulate.add_mutually_exclusive_group()
    arrivals.add_argument("file", nargs="?", metavar="FILE", help="the arrivals; - or nothing for standard input")
    arrivals.add_argument("--requests", type=_number(int, 1), metavar="N", help="make N requests at one instant (default: 20)")
    _add_limit(simulate, "10/s")
    simulate.add_argument("--burst", type=_number(int, 1), metavar="N", help="the burst of a TokenBucket, which is then the strategy")
    simulate.add_argument("--max-wait", type=_number(float, 0), metavar="SECONDS", help="refuse requests that would wait longer")
    simulate.set_defaults(command=_simulate)
    return parser


def _add_limit(parser: argparse.ArgumentParser, rate: str) -> None:
    parser.add_argument("--rate", default=rate, help=f"such as 50/s, 3/250ms, 600/min or 20 (per second) (default: {rate})")
    names = {name.lower(): name for name in strategies.NAMES}
    parser.add_argument(
        "--strategy",
        type=lambda text: names.get(text.lower(), text),
        choices=strategies.NAMES,
        metavar="NAME",
        help=f"{', '.join(strategies.NAMES)} (default: TokenPool)",
    )


def _number(kind: type[int] | type[float], least: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= 1_000_000:
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a {'whole ' * (kind is int)}number from {least:g} to 1000000")
        return value

    return convert


def _demo(rate: str, strategy: str | None, seconds: float) -> int:
    try:
        from aiorate._tools import demo
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "httpx2"):
            raise
        print(f'aiorate demo needs {error.name}, which is not installed: pip install "aiorate-limiter[demo]"', file=sys.stderr)
        return 2
    return demo.run(rate, strategy, seconds)


def _simulate(**options: object) -> int:
    from aiorate._tools import simulate

    return simulate.run(**options)  # type: ignore[arg-type]  # as parsed


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiorate-limiter")
    except PackageNotFoundError:
        return "unknown"
