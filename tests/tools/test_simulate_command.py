"""``python -m aiorate simulate --arrivals``: its output, its JSON, its errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import LONG
from helpers.platforms import needs_terminals

from aiorate import cli
from aiorate._simulate import words

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-m", "aiorate", "simulate"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two clients: 40 requests in the first second by one, then one each second by the other."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "access.log"
    line = '{} - - [10/Oct/2000:13:55:{:02} -0700] "GET / HTTP/1.0" 200 2326 "-" "-"\n'
    path.write_text(line.format("10.0.0.1", 0) * 40 + "".join(line.format("10.0.0.2", second) for second in range(1, 21)))
    return path.name


@pytest.fixture
def burst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ten requests at one instant, and a pause of 20 s before another."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "burst.csv"
    path.write_text("time,user\n" + "100,ann\n" * 10 + "120,bob\n")
    return path.name


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["simulate", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "--json" in arguments or all(len(line) <= 80 for line in out.splitlines())
    assert "\x1b" not in out
    return out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(shown(capsys, *arguments, "--json"))
    return result


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_the_summary_by_hand(burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At 2/s with a burst of 4: 4 and the last at once, 6 later, after 0.5 to 3 s."""
    words = shown(capsys, "--arrivals", burst, "--rate", "2/s", "--burst", "4", "--no-plot")

    assert words.startswith("burst.csv (CSV): 11 requests in 20 s, 0.5/s on average\n")
    assert 'TokenBucket("2/s", burst=4)' in words
    assert "all at its beginning, as a burst" in " ".join(words.split())
    assert "granted at once            5   45.45%" in words
    assert "granted later              6   54.55%" in words
    assert "refused                    0    0.00%" in words
    assert "p50 500 ms   p90 2.5 s   p99 3 s   max 3 s" in words
    assert "fullest window of 1 s:  10 arrived, 5 granted" in words


def test_the_json_by_hand(burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The shape that the page describes, which programs rely on."""
    found = as_json(
        capsys, "--arrivals", burst, "--rate", "2/s", "--burst", "4", "--max-wait", "2s", "--max-waiting", "9", "--suggest", "p50=1s"
    )

    assert found == {
        "arrivals": {
            "source": burst,
            "format": "CSV",
            "requests": 11,
            "first": 100.0,
            "seconds": 20.0,
            "per_second": 0.5,
            "spread": "none",
            "out_of_order": 0,
            "skipped_lines": 0,
        },
        "limit": {
            "strategy": 'TokenBucket("2/s", burst=4)',
            "rate": "2/s",
            "per_second": 2.0,
            "permits": 1,
            "max_wait": 2.0,
            "max_waiting": 9,
            "key": None,
        },
        "granted": 9,
        "granted_at_once": 5,
        "refused": 2,
        "waits": {"p50": 0.0, "p90": 2.0, "p99": 2.0, "max": 2.0, "mean": pytest.approx(5 / 9)},
        "fullest_window": {"seconds": 1.0, "arrived": 10, "granted": 5},
        "keys": None,
        "suggest": {
            "goals": "p50=1s",
            "found": [
                {
                    "searched": "burst",
                    "strategy": 'TokenBucket("2/s", burst=3)',
                    "limiter": 'Limiter(TokenBucket("2/s", burst=3))',
                    "note": None,
                },
                {
                    "searched": "rate",
                    "strategy": 'TokenBucket("1/s", burst=4)',
                    "limiter": 'Limiter(TokenBucket("1/s", burst=4))',
                    "note": None,
                },
            ],
        },
    }


def test_nothing_granted_has_no_waits(burst: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Null, and no line of text. A new pool holds one permit."""
    (tmp_path / "one").write_text("1\n")
    options = ("--arrivals", "one", "--permits", "2", "--max-wait", "0")

    found = as_json(capsys, *options)

    assert (found["granted"], found["refused"]) == (0, 1)
    assert found["waits"] == {"p50": None, "p90": None, "p99": None, "max": None, "mean": None}
    assert found["fullest_window"] == {"seconds": 1.0, "arrived": 1, "granted": 0}
    assert "waits (granted)" not in shown(capsys, *options)


def test_a_limit_for_each_client(log: str, burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One client of a log is held up, the other is not."""
    text = shown(
        capsys, "--arrivals", log, "--key", "address", "--rate", "5/s", "--max-wait", "1s", "--suggest", "refused=10%", "--no-plot"
    )

    assert "one for each address" in text
    assert "address:  2 values, of which 1 had a request delayed or refused, and 1 refused" in text
    assert "fullest window of 1 s of one address:  40 arrived" in text
    assert 'KeyedLimiter(lambda address: TokenBucket("5/s", burst=' in text
    by_user = as_json(capsys, "--arrivals", burst, "--key", "user", "--rate", "1/s")
    assert by_user["keys"] == {"number": 2, "delayed": 1, "refused": 0}


def test_a_log_is_spread_and_says_so(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It changes the answer: 40 in a second are not a burst."""
    even = shown(capsys, "--arrivals", log, "--rate", "40/s", "--no-plot")
    none = shown(capsys, "--arrivals", log, "--rate", "40/s", "--spread", "none", "--no-plot")

    assert "the requests of a second are spread evenly over it (--spread none: all at its beginning)" in " ".join(even.split())
    assert "max 0 s" in even
    assert "all at its beginning, as a burst (--spread even: spread over it)" in " ".join(none.split())
    assert "max 975 ms" in none


def test_a_plot_shows_arrivals_and_grants(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In 80 columns of plain text, in a pipe."""
    text = shown(capsys, "--arrivals", log, "--rate", "10/s")

    assert "arrivals (o) and grants (bars) per second, and the rate" in text
    assert "█" in text
    assert "15 s" in text


def test_without_plotext_the_figures_are_printed(log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """``pip install aiorate`` alone simulates."""
    monkeypatch.delitem(sys.modules, "aiorate._simulate.plot", raising=False)
    monkeypatch.setitem(sys.modules, "plotext", None)

    assert shown(capsys, "--arrivals", log).endswith('For a plot: pip install "aiorate[demo]"\n')


def test_a_rate_below_the_load_is_told(burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A burst helps for the file, and not for long; so the rate comes first."""
    text = shown(capsys, "--arrivals", burst, "--rate", "1/5s", "--suggest", "max=5s", "--no-plot")

    assert "0.5 permits/s are asked for on average, more than the rate" in " ".join(text.split())
    assert text.index("the smallest rate") < text.index("the smallest burst at 1/5s")


def test_what_is_impossible_is_told(burst: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten at one instant, and a burst of one."""
    text = shown(capsys, "--arrivals", burst, "--burst", "1", "--suggest", "max=0", "--no-plot")

    assert 'Limiter(TokenBucket("10/s", burst=10))' in text
    assert "No rate up to 1000000000/s is enough: too many requests come at one instant" in " ".join(text.split())


def test_arrivals_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    """By number or by time, the same for the same seed."""
    by_number = as_json(capsys, "--arrivals", "poisson:100/s", "--requests", "500", "--seed", "4")
    by_time = as_json(capsys, "--arrivals", "poisson:100/s", "--duration", "5s", "--seed", "4")

    assert by_number["arrivals"]["requests"] == 500
    assert 4.5 < by_time["arrivals"]["seconds"] < 5
    assert as_json(capsys, "--arrivals", "poisson:100/s")["arrivals"]["requests"] == 10_000
    assert as_json(capsys, "--arrivals", "poisson:100/s", "--requests", "500", "--seed", "4") == by_number


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--json"], "--json needs --arrivals"),
        (["--key", "address"], "--key needs --arrivals"),
        (["--arrivals", "nowhere"], "cannot read nowhere: No such file or directory."),
        (["--arrivals", "poisson:fast"], "Write '100/s'"),
        (["--arrivals", "poisson:"], "Write '100/s'"),
        (["--arrivals", "poisson:1/s", "--key", "address"], "--key and --column are for files"),
        (["--arrivals", "poisson:1/s", "--duration", "1h", "--requests", "3"], "exclude each other"),
        (["--arrivals", "poisson:1000000/s", "--duration", "1h"], "at most 10000000 are allowed"),
        (["--arrivals", "poisson:1/s", "--duration", "1m"], "Write '1s', '250ms'"),
        (["--arrivals", "poisson:1/s", "--burst", "0"], "not a whole number from 1"),
        (["--arrivals", "poisson:1/s", "--burst", "2", "--strategy", "TokenPool"], "--burst is that of a TokenBucket; TokenPool has none"),
        (["--arrivals", "poisson:1/s", "--burst", "2", "--permits", "3"], "--permits 3 can never be granted at once by --burst 2"),
        (["--arrivals", "poisson:1/s", "--strategy", "SlidingWindow", "--permits", "11"], "10 is the most at once"),
        (["--arrivals", "poisson:1/s", "--strategy", "CalendarWindow", "--rate", "3/7s"], "divide a day"),
        (["--arrivals", "poisson:1/s", "--suggest", "p99"], "'p99' is not a goal. Write 'p99=1s'"),
        (["--arrivals", "poisson:1/s", "--suggest", "refused=1%"], "needs --max-wait or --max-waiting"),
        (["--arrivals", "poisson:1/s", "--max-wait", "soon"], "'soon' is not a duration"),
        (["--arrivals", "poisson:1/s", "--max-wait", "9999day"], "at most 366day"),
        (["--arrivals", "poisson:1/s", "--max-waiting", "-1"], "not a whole number from 0"),
        (["--arrivals", "poisson:1/s", "--seed", "x"], "not a whole number of at most 18 digits"),
        (["--arrivals", "poisson:1/s", "--spread", "wide"], "invalid choice: 'wide'"),
        (["--arrivals", "poisson:1/s", "--unit", "h"], "invalid choice: 'h'"),
    ],
)
def test_wrong_options_name_the_right_ones(arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and nothing on standard output."""
    assert hint in refused(capsys, *arguments)


def test_options_for_made_arrivals_are_refused_for_a_file(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They would be ignored."""
    assert "--requests is for arrivals that are made" in refused(capsys, "--arrivals", log, "--requests", "5")
    assert "--duration is for arrivals that are made" in refused(capsys, "--arrivals", log, "--duration", "5s")


def test_a_broken_line_ends_the_command(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With its number. One that is still being written can be left out."""
    with open(log, "a") as file:
        file.write("10.0.0.3 - - [10/Oct/20")

    error = refused(capsys, "--arrivals", log)

    assert error.startswith(f"aiorate simulate: {log}, line 61 has no time in brackets")
    assert error.endswith("The line: '10.0.0.3 - - [10/Oct/20'\n")
    assert "broken lines, left out: 1" in shown(capsys, "--arrivals", log, "--skip-broken", "--no-plot")


def test_standard_input_is_read(log: str) -> None:
    """As in ``zcat old.gz | ...``; no bar and no colours in a pipe."""
    with open(log, "rb") as file:
        done = subprocess.run([*COMMAND, "--arrivals", "-", "--rate", "5/s"], stdin=file, capture_output=True, timeout=LONG, check=True)
    text = done.stdout.decode()

    assert text.startswith("standard input (access log): 60 requests in 20 s")
    assert "\x1b" not in text
    assert done.stderr == b""


@needs_terminals
def test_a_bar_is_drawn_on_a_terminal_alone(log: str) -> None:
    """On standard error, so that the result can be piped on."""
    import pty

    outer, inner = pty.openpty()
    child = subprocess.Popen(
        [*COMMAND, "--arrivals", log, "--json", "--suggest", "p99=1s"],
        stdout=subprocess.PIPE,
        stderr=inner,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(inner)
    out = child.communicate(timeout=LONG)[0]
    drawn = b""
    try:
        while part := os.read(outer, 4_096):
            drawn += part
    except OSError:  # the end, on Linux
        pass
    os.close(outer)

    assert child.returncode == 0
    assert json.loads(out)["granted"] == 60
    assert b"simulating" in drawn
    assert b"searching" in drawn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_needs_rich(burst: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without it, there is none."""
    drawn = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", drawn)
        assert cli.main(["simulate", "--arrivals", burst, "--no-plot"]) == 0
    without = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", without)
        patch.setitem(sys.modules, "rich.console", None)
        assert cli.main(["simulate", "--arrivals", burst, "--no-plot"]) == 0

    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]
    assert "simulating" in drawn.getvalue()
    assert without.getvalue() == ""


def test_all_that_was_asked_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what changes few figures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times\x7f").write_text("1714564802\n1714564801\n1714564802\n")
    options = ("--permits", "2", "--max-waiting", "5", "--spread", "random", "--rate", "1000000/s")

    text = " ".join(shown(capsys, "--arrivals", "times\x7f", *options).split())

    assert "times\\x7f (CSV): 3 requests" in text
    assert "1 came before the line above them, by 1 s at most, and were sorted" in text
    assert "spread at random" in text
    assert "2 permits for each request" in text
    assert "a request that finds 5 others waiting is refused" in text


def test_a_closed_pipe_ends_it_quietly(log: str) -> None:
    """As ``| head -1`` does."""
    with subprocess.Popen([*COMMAND, "--arrivals", log], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()

        assert child.stderr.read() == b""
        assert child.wait(LONG) == 141


def test_what_the_output_cannot_encode_is_escaped(log: str) -> None:
    """Letters of a file's name are; a plot of question marks would show nothing."""
    os.rename(log, "zugänge.log")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*COMMAND, "--arrivals", "zugänge.log", "--rate", "5/s"]

    done = subprocess.run(command, capture_output=True, timeout=LONG, check=True, env=ascii_only)

    lines = done.stdout.decode("ascii").splitlines()
    assert lines[0].startswith("zug\\xe4nge.log (access log): 60 requests")
    assert lines[-1] == "For a plot: PYTHONIOENCODING=utf-8"


def test_closed_outputs_are_no_error(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has None in their place, as in ``>&- 2>&-`` or a program without a console."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    assert cli.main(["simulate", "--arrivals", log, "--rate", "5/s"]) == 0


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (1, "1 ns"),
        (1_500, "1.5 us"),
        (12_345_678, "12.3 ms"),
        (100_000_000, "100 ms"),
        (1_000_000_000, "1 s"),
        (99_900_000_000, "1.67 min"),
        (90_000_000_000, "1.5 min"),
        (7_200_000_000_000, "2 h"),
    ],
)
def test_durations_have_units(ns: int, text: str) -> None:
    """Three digits are enough."""
    assert words.show_duration(ns) == text
    assert words.duration_to_ns(text.replace(" ", "")) == pytest.approx(ns, rel=0.01)
