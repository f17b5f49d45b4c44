"""The HTML report in Chromium: what it draws, where its points lead, and that no text runs."""

import pytest
from browser import NoBrowser, browser, media, open_page, resize, scripts, violations
from handmade import MIB, case, not_run, result, run
from made_pairs import pairs_run
from sent import ddp, traffic

from torchcoll.core.file import save
from torchcoll.questions.page.document import page_of
from torchcoll.report.page import html_text

pytestmark = pytest.mark.browser

SIZES = (MIB, 4 * MIB, 16 * MIB)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    try:
        with browser(tmp_path_factory.mktemp("profile")) as running:
            yield running
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """1, 4 and 16 ms; of the largest one call in ten takes 160 ms."""
    folder = tmp_path_factory.mktemp("page")
    results = []
    for n, size in enumerate(SIZES):
        calls = [10**6 * 4**n + k for k in range(30)]
        if n == 2:
            calls[7] = 160 * 10**6
        results.append(result(2, case=case(size_bytes=size), time_ns={"host": [calls, calls]}))
    save(run(*results, ranks=2), folder / "x.jsonl")
    path = folder / "x.html"
    path.write_text(html_text(page_of([str(folder / "x.jsonl")])))
    return path


def plot(driver, number):
    return f"document.querySelector('#g{number} .plot')"


def text(driver, selector):
    return driver.execute_script(f"return document.querySelector('{selector}').textContent")


def messages(driver):
    return [entry["message"] for entry in driver.get_log("browser")]


def choose(driver, number, label, option):
    """Chooses in the selector of a chart, as a user does."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    for element in driver.find_elements(By.CSS_SELECTOR, f"#g{number} .controls label"):
        if element.text.startswith(label):
            Select(element.find_element(By.TAG_NAME, "select")).select_by_visible_text(option)
            return
    raise AssertionError(f"no selector {label}")


def test_time_and_bandwidth_log_and_linear(driver, page):
    open_page(driver, page)
    assert messages(driver) == []
    data = f"{plot(driver, 0)}.data.at(-1)"
    assert driver.execute_script(f"return {data}.y") == [0.001, 0.004, 0.016]
    choose(driver, 0, "figure", "bus bandwidth")
    # 1 MiB in 1.0000145 ms, and a factor of 2 (n - 1) / n = 1 on 2 ranks.
    assert driver.execute_script(f"return {data}.y")[0] == 1.049
    layout = f"{plot(driver, 0)}.layout.yaxis"
    assert driver.execute_script(f"return [{layout}.type, {layout}.title.text]") == [
        "log", "GB/s busbw",
    ]  # fmt: skip
    choose(driver, 0, "scale", "linear")
    assert driver.execute_script(f"return [{layout}.type, {data}.y[0]]") == ["linear", 1.049]
    choose(
        driver, 0, "figure", "time"
    )  # the page keeps its arrays, and plotly does not change them
    assert driver.execute_script(f"return {data}.y") == [0.001, 0.004, 0.016]


def test_from_a_point_to_its_row_its_samples_and_its_command(driver, page):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    open_page(driver, page)
    focus = driver.find_element(By.CSS_SELECTOR, "#g0 .plot")
    focus.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "16M: 16.00 ms" in text(driver, "#g0 .readout")
    focus.send_keys(Keys.ENTER)
    details = text(driver, "#g0 .details")
    assert "all_reduce 16M on gloo" in details
    assert "--explain all_reduce 16M" in details and "--view calls" in details
    cells = driver.execute_script(
        "return [...document.querySelectorAll('#case-0\\\\.2 td')].map(cell => cell.textContent)"
    )
    assert len(cells) > 5 and all(cell in details for cell in cells)
    assert (
        driver.execute_script("return document.querySelector('#g0 .details a').hash") == "#case-0.2"
    )
    driver.find_element(By.CSS_SELECTOR, "#g0 .details button").click()
    drawn = f"Object.fromEntries({plot(driver, 1)}.data.map(t => [t.name, t.y]))"
    assert driver.execute_script(f"return {drawn}")["outliers"] == [0.16]
    choose(driver, 1, "rank", "rank 1")
    assert driver.execute_script(f"return {drawn}")["outliers"] == [0.16]


def test_without_scripts_the_tables_remain(driver, page):
    driver.get(page.as_uri())  # first: a new renderer may not yet know that scripts are off
    scripts(driver, False)
    try:
        driver.refresh()
    finally:
        scripts(driver, True)
    from selenium.webdriver.common.by import By

    figures = driver.find_elements(By.CSS_SELECTOR, "figure.chart")
    assert figures and not any(figure.is_displayed() for figure in figures)
    assert driver.find_element(By.ID, "case-0.2").is_displayed()
    assert "need JavaScript" in driver.find_element(By.CSS_SELECTOR, ".without").text


@pytest.mark.parametrize("width", [375, 800, 1600])
def test_no_width_scrolls_sideways(width, driver, page):
    resize(driver, width)
    open_page(driver, page)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_print_has_the_folded_tables_and_no_controls(driver, page, tmp_path):
    names = [f"{n}.jsonl" for n in range(4)]
    for name in names:
        (tmp_path / name).write_bytes(page.with_suffix(".jsonl").read_bytes())
    path = tmp_path / "x.html"
    path.write_text(html_text(page_of([str(tmp_path / name) for name in names])))
    resize(driver, 800)
    open_page(driver, path)
    visible = """return ['details td', '.controls'].map(
        selector => document.querySelector(selector).checkVisibility())"""
    assert driver.execute_script(visible) == [False, True]
    media(driver, kind="print")
    try:
        assert driver.execute_script(visible) == [True, False]
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 800
    finally:
        media(driver)


@pytest.mark.parametrize(
    ("scheme", "ink", "icon"),
    [
        ("dark", "rgb(228, 232, 236)", "rgb(161, 171, 181)"),
        ("light", "rgb(27, 31, 36)", "rgb(87, 96, 106)"),
    ],
)
def test_ink_and_toolbar_stand_out_on_dark_and_light_paper(driver, page, scheme, ink, icon):
    resize(driver, 1200)
    media(driver, scheme)
    try:
        open_page(driver, page)
        for selector, colour in ((".xtick text", ink), (".modebar-btn path", icon)):
            fill = f"getComputedStyle(document.querySelector('#g0 {selector}')).fill"
            assert driver.execute_script(f"return {fill}") == colour
    finally:
        media(driver)


def test_axe_finds_nothing_on_the_pages_of_runs_sides_pairs_captures_and_dead_jobs(
    driver, page, tmp_path
):
    run_file = page.with_suffix(".jsonl")
    save(pairs_run(5, slow=3), tmp_path / "pairs.jsonl")
    traffic(ddp, steps=4).save(tmp_path / "sent.jsonl")
    pages = [page]
    for name, files in {
        "sides": [f"old={run_file}", f"new={run_file}"],
        "pairs": [str(tmp_path / "pairs.jsonl")],
        "sent": [str(tmp_path / "sent.jsonl")],
        "dead": ["examples/stuck-rank"],
    }.items():
        pages.append(tmp_path / f"{name}.html")
        pages[-1].write_text(html_text(page_of(files)))
    assert violations(driver, pages) == []


def test_tables_are_copied_as_csv_and_markdown(driver, page):
    open_page(driver, page)
    # A clipboard needs a window with the focus, which a headless browser may not have.
    driver.execute_script("navigator.clipboard.writeText = text => window.copied = text")
    buttons = (
        "document.getElementById('case-0.2').closest('section').querySelectorAll('.tools button')"
    )
    for number, sign in ((0, ","), (1, "|")):
        driver.execute_script(f"{buttons}[{number}].click()")
        lines = driver.execute_script("return window.copied").split("\n")
        assert len([line for line in lines if line.count(sign) > 5 and "16M" in line]) == 1


HOSTILE = (
    "</script><script>window.ran=1</script><img src=x onerror=window.ran=2>\"'`\u2028${ran=3}"
    '<b>x</b><a href="javascript:window.ran=4">y</a>{{7*7}}--><!--<script>'
)


def test_no_text_of_a_file_runs(driver, tmp_path):
    """Labels, hosts, algorithms, file names and reasons; drawn, hovered and described."""
    folder = tmp_path / "<img src=x onerror=window.ran=5>&quot;"
    folder.mkdir()
    members = [{"rank": r, "host": HOSTILE, "device_name": HOSTILE} for r in range(2)]
    for name in ("a", "b"):
        results = [result(2, case=case(size_bytes=size, splits=None)) for size in SIZES]
        results.append(not_run("failed", HOSTILE))
        results[0].warnings = [HOSTILE]
        header = {
            "run_id": HOSTILE,
            "spec": {"labels": {HOSTILE: HOSTILE}},
            "environment": {"torch": HOSTILE, "libraries": {"gloo": HOSTILE}},
        }
        made = run(*results, ranks=2, members=members, header=header)
        save(made, folder / f"{name}<script>window.ran=6<-script>.jsonl")
    sides = [f"{HOSTILE.replace('=', '-').replace('/', '|')}{n}={file}"
             for n, file in enumerate(sorted(folder.iterdir()))]  # fmt: skip
    path = tmp_path / "x.html"
    path.write_text(html_text(page_of(sides)))
    open_page(driver, path)
    driver.execute_script("""
        for (const plot of document.querySelectorAll('.plot')) {
            for (const key of ['ArrowRight', 'ArrowDown', 'Enter']) {
                plot.dispatchEvent(new KeyboardEvent('keydown', { key }));
            }
        }
        for (const list of document.querySelectorAll('select')) {
            list.selectedIndex = list.options.length - 1;
            list.dispatchEvent(new Event('change'));
        }
    """)
    driver.execute_async_script("setTimeout(arguments[0], 500)")
    assert driver.execute_script("return window.ran ?? null") is None
    assert (
        driver.execute_script(
            "return document.querySelectorAll('img, b, main a[href^=java]').length"
        )
        == 0
    )
    assert [line for line in messages(driver) if "Content Security" in line] == []
