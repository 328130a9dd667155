"""The report in a real browser."""

import time

import numpy as np
import pytest

from mmrm.report import page as pages
from mmrm.report.collect import collect
from mmrm.report.pictures import encode

from browser import chromium, contrasts, errors, set_screen  # isort: skip
from run_logs import epochs, settings, write_run, write_session  # isort: skip

pytestmark = pytest.mark.browser
TABS = ['summary', 'curves', 'compare', 'classes', 'pictures', 'details']
BACKGROUND = 'return getComputedStyle(document.body).backgroundColor'
ACCURACY = [11.125, 25.5, 37.0625, 44.4]


@pytest.fixture(scope='module')
def report(tmp_path_factory):
    """The page of a comparison with seeds, of a detector and of a run that was killed while it wrote a line."""
    folder = tmp_path_factory.mktemp('runs')
    for seed in range(2):
        write_run(
            folder / 'baseline' / 'resnet18_2xb64_cifar100' / f'seed{seed}', [10.0 + seed, 20.0, 30.0, 41.0], seed=seed
        )
    write_run(folder / 'rm' / 'resnet18_2xb64_cifar100', ACCURACY, rm_lambda=0.4, rm_kl=1.5, rm_kl_blind=2.0)
    killed = epochs(1, [10.0, 20.0])
    write_session(folder / '<script>alert(1)<' / 'killed', '20260101_000000', killed, settings(9), '{"accuracy/to')
    for name in ('a', 'b'):
        found = {'coco/bbox_mAP': 0.25, 'coco/bbox_mAP_s': 0.1, 'coco/vase_precision': 0.5}
        records = [dict(lr=0.1, loss=1.0, epoch=1, iter=1, step=1), dict(step=1, **found)]
        write_session(folder / 'detector' / name, '20260101_000000', records, settings(1))
    shot = dict(image=encode(np.zeros((4, 4, 3), np.uint8)), caption='p = 0.50', alt='a picture')
    run = folder / 'rm' / 'resnet18_2xb64_cifar100'
    pictures = {str(run): dict(maps={'1': dict(shot, truth=shot)}, notes=['one thing was not made'])}
    out = folder / 'report.html'
    out.write_text(pages.build(collect([folder]), pictures), encoding='utf-8')
    return out


@pytest.fixture(scope='module')
def driver(report):
    with chromium() as driver:
        yield driver


@pytest.fixture
def open_page(driver, report):
    driver.execute_cdp_cmd('Storage.clearDataForOrigin', dict(origin='*', storageTypes='local_storage'))

    def open_at(tab='summary', **screen):
        set_screen(driver, **screen)
        driver.get('about:blank')
        driver.get(f'file://{report}#{tab}')
        time.sleep(0.4)
        return driver

    return open_at


def find(driver, selector):
    return driver.find_elements('css selector', selector)


def shown_panels(driver):
    return [panel.get_attribute('id')[6:] for panel in find(driver, '[role=tabpanel]') if panel.is_displayed()]


def test_every_tab_opens_by_click_and_by_key_and_a_name_of_a_folder_is_text(open_page):
    from selenium.webdriver.common.keys import Keys

    driver = open_page()
    assert find(driver, '.badge.finished')
    assert '<script>alert(1)<' in driver.find_element('tag name', 'body').text
    for tab in TABS:
        driver.find_element('id', f'tab-{tab}').click()
        assert shown_panels(driver) == [tab]
    for key, tab in ((Keys.ARROW_RIGHT, 'summary'), (Keys.ARROW_LEFT, 'details'), (Keys.HOME, 'summary')):
        driver.switch_to.active_element.send_keys(key)
        assert shown_panels(driver) == [tab] and driver.switch_to.active_element.get_attribute('id') == f'tab-{tab}'
    assert errors(driver) == []


def drawn_colours(driver, colour):
    """How many pixels of the first chart have a colour, within a little."""
    return driver.execute_script(
        """
        const canvas = document.querySelector('.plot canvas');
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const wanted = arguments[0]; let count = 0;
        for (let i = 0; i < pixels.length; i += 4)
          if (pixels[i + 3] > 200 && [0, 1, 2].every((c) => Math.abs(pixels[i + c] - wanted[c]) < 12)) count += 1;
        return count;
        """,
        colour,
    )


def test_a_legend_hides_and_shows_its_run_by_click_and_by_key(open_page):
    from selenium.webdriver.common.keys import Keys

    driver = open_page('curves')
    colour = [0xB8, 0x6E, 0x00]  # the third
    button = next(each for each in find(driver, '.legend button') if each.text == 'rm/resnet18_2xb64_cifar100')
    assert drawn_colours(driver, colour) > 50 and button.get_attribute('aria-pressed') == 'true'
    button.click()
    time.sleep(0.2)
    assert drawn_colours(driver, colour) == 0 and button.get_attribute('aria-pressed') == 'false'
    button.send_keys(Keys.SPACE)
    time.sleep(0.2)
    assert drawn_colours(driver, colour) > 50 and button.get_attribute('aria-pressed') == 'true'
    assert errors(driver) == []


def test_a_hover_shows_the_value_that_the_log_has(open_page):
    from selenium.webdriver import ActionChains

    driver = open_page('curves')
    area = driver.find_element('css selector', '.plot .u-over')
    width = area.size['width']
    # The second of the epochs 1 to 4: a third of the way, from the middle.
    ActionChains(driver).move_to_element_with_offset(area, int(width * (1 / 3 - 0.5)), 0).perform()
    time.sleep(0.2)
    tip = driver.find_element('css selector', '.plot .tip').text
    assert 'epoch 2' in tip and '\nrm/resnet18_2xb64_cifar100\n25.5\n' in tip
    assert '20 ± 0, n = 2' in tip, 'the mean over two seeds'


def test_the_arrow_keys_read_a_chart(open_page):
    from selenium.webdriver.common.keys import Keys

    driver = open_page('curves')
    chart = driver.find_element('css selector', '.plot')
    driver.execute_script('arguments[0].focus()', chart)
    seen = []
    for _ in range(4):
        chart.send_keys(Keys.ARROW_RIGHT)
        time.sleep(0.1)
        seen.append(chart.find_element('css selector', '.tip').text)
    for epoch, (value, text) in enumerate(zip(ACCURACY, seen), 1):
        assert f'epoch {epoch}' in text and str(value) in text, seen


def test_log_smoothing_zoom_and_every_run_do_not_break_a_chart(open_page):
    from selenium.webdriver import ActionChains

    driver = open_page('curves')
    for button in [each for each in find(driver, '.chart figcaption button') if each.is_displayed()][:6]:
        driver.execute_script('arguments[0].click()', button)
    driver.execute_script(
        "const s = document.getElementById('smoothing'); s.value = 0.9; s.dispatchEvent(new Event('input'));"
    )
    driver.find_element('css selector', '[data-seeds=each]').click()
    area = driver.find_element('css selector', '.plot .u-over')
    ActionChains(driver).move_to_element_with_offset(area, -100, 0).click_and_hold().move_by_offset(
        150, 0
    ).release().perform()
    driver.find_element('id', 'reset').click()
    assert errors(driver) == []


@pytest.mark.parametrize('dark', [False, True], ids=['light', 'dark'])
def test_texts_are_readable_in_light_and_dark(open_page, dark):
    driver = open_page(dark=dark)
    assert (driver.execute_script(BACKGROUND) == 'rgb(255, 255, 255)') != dark
    for tab in TABS:
        driver.find_element('id', f'tab-{tab}').click()
        driver.execute_script("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        time.sleep(0.2)
        worst = contrasts(driver)
        assert len(worst) > 10 and worst[0][0] >= 4.5, (tab, worst[:3])


def test_the_switch_of_colours_wins_over_the_system(open_page):
    driver = open_page()
    switch = driver.find_element('id', 'theme')
    for name, colour in (('light', 'rgb(255, 255, 255)'), ('dark', 'rgb(20, 23, 28)'), ('auto', 'rgb(255, 255, 255)')):
        switch.click()
        assert name in switch.text and driver.execute_script(BACKGROUND) == colour


def test_a_phone_needs_no_sideways_scrolling(open_page):
    driver = open_page(width=360, height=740)
    for tab in TABS:
        driver.execute_script(f"document.getElementById('tab-{tab}').click()")
        time.sleep(0.3)
        assert driver.execute_script('return document.documentElement.scrollWidth') <= 360, tab
    assert errors(driver) == []


def test_printed_report_has_every_part_and_every_chart(open_page):
    driver = open_page()
    driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert shown_panels(driver) == TABS
    assert all(find(plot, 'canvas') for plot in find(driver, '.plot'))
    driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert shown_panels(driver) == ['summary'] and errors(driver) == []
