"""What the first pages claim is so: of a semaphore and sleep, of the examples, of a burst."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.scripts import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (DOCS / "index.md").read_text(encoding="utf-8")
WHY = (DOCS / "why_429.md").read_text(encoding="utf-8")
figures = script("make_figures")


@pytest.mark.parametrize(("way", "requests", "refused"), [("short", 129, 69), ("long", 60, 0), ("aiorate", 60, 0)])
def test_the_picture_of_the_first_page_and_its_text_agree(way: str, requests: int, refused: int) -> None:
    """The numbers in the text are those of the run that was drawn."""
    sent, _ = figures.sent_by(way)

    assert (requests, refused) == (len(sent), sum(not answered for _, answered in sent))
    if refused:
        assert f"{refused} of {requests}" in INDEX
        assert f"it sent {requests} requests for 60 answers, and {refused} were refused" in INDEX


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_semaphore_and_a_second_of_sleep_waste_the_limit() -> None:
    """With answers after half a second, 10 requests start in each 1.5 s: 6.7 per second."""
    semaphore, began = asyncio.Semaphore(10), []

    async def job() -> None:
        async with semaphore:
            began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.5)
            await asyncio.sleep(1)

    await asyncio.gather(*(job() for _ in range(100)))

    assert 6.7 == round(90 / (began[-1] - began[0]), 1)
    assert "that is 6.7 per second" in INDEX


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_cancelled_sleeps_let_twenty_requests_start_in_a_second() -> None:
    """The place of a cancelled task is free at once."""
    semaphore, began = asyncio.Semaphore(10), []

    async def job() -> None:
        async with semaphore:
            began.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)

    first = [asyncio.create_task(job()) for _ in range(10)]
    others = [asyncio.create_task(job()) for _ in range(30)]
    await asyncio.sleep(0.5)
    for task in first:
        task.cancel()
    await asyncio.gather(*first, *others, return_exceptions=True)

    assert 20 == sum(at - began[0] < 1 for at in began)
    assert "twenty requests have left in it" in INDEX


def test_every_example_is_on_the_page_of_examples() -> None:
    """With one sentence and a link to the repository."""
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")}

    linked = re.findall(r"^\* \[[\w.]+\]\(https://github\.com/aiorate/aiorate/blob/main/([\w./]+)\): .+", page, flags=re.MULTILINE)

    assert sorted(files) == sorted(linked)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_into_the_repository_names_a_file(page: Path) -> None:
    """A file that was renamed would be missing there."""
    linked = re.findall(r"\(https://github\.com/aiorate/aiorate/blob/main/([^)#]+)", page.read_text(encoding="utf-8"))

    assert [] == [path for path in linked if not (ROOT / path).exists()]


def test_simulate_prints_what_the_page_about_429_says() -> None:
    """The second command of the page, and the line that it promises."""
    command = next(line for line in WHY.splitlines() if line.startswith("python -m aiorate simulate --arrivals poisson"))
    promised = next(iter(re.findall(r"`(fullest window of 1 s: .+?)`", WHY)))

    done = subprocess.run([sys.executable, *command.split()[1:]], capture_output=True, text=True, check=True, cwd=ROOT)

    assert promised in done.stdout


def test_the_page_about_429_has_as_many_causes_as_it_says() -> None:
    """The description, and the page on HTTP clients, say ten."""
    causes = re.findall(r"^## (.+)$", WHY, flags=re.MULTILINE)[1:-1]  # without how to look, and what else to do

    assert 10 == len(causes)
    for page in (WHY, (DOCS / "http.md").read_text(encoding="utf-8")):
        assert "ten causes" in page


def test_the_readme_says_what_the_benchmarks_measured() -> None:
    """Nanoseconds, to the next ten, and their share of a request of 10 ms; without the C part, what the page on speed says."""
    (claim,) = re.findall(r"about (\d+) ns\]\(\S+\): ([\d.]+) % of a request of 10 ms \(\[(\d+ to \d+ ns)\]", README)
    nanoseconds = script("make_tables").measured("uncontended", "acquire(), 1000/s", "aiorate TokenPool")

    assert int(claim[0]) == round(nanoseconds, -1)
    assert float(claim[1]) == int(claim[0]) / 10_000_000 * 100
    assert f"four to six, {claim[2]}" in (DOCS / "speed.md").read_text(encoding="utf-8")


def test_the_readme_and_the_first_page_show_one_program() -> None:
    """Readers of one find the same in the other."""
    shown = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL)

    assert shown is not None
    assert shown[1] in INDEX
