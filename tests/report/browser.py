"""Chromium without a window, for the tests that open the report as a reader does."""

import contextlib
import shutil
import tempfile

import pytest

FLAGS = (
    '--headless=new',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
)
# WCAG's contrast of every text with what is behind it: [ratio, text, tag], the worst first.
CONTRASTS = """
const parse = (text) => {
  const found = text.match(/[\\d.]+/g).map(Number);
  return found.length > 3 ? found : [...found, 1];
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
const light = (rgb) => {
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = rgb.map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  const layers = [];
  for (let each = node; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
};
const found = [];
document.querySelectorAll('body *').forEach((node) => {
  const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  if (!own || !node.getClientRects().length || ['SCRIPT', 'STYLE', 'OPTION'].includes(node.tagName)) return;
  const back = behind(node);
  const text = over(parse(getComputedStyle(node).color), back);
  const [a, b] = [light(text), light(back)].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), node.textContent.trim().slice(0, 40), node.tagName]);
});
return found.sort((x, y) => x[0] - y[0]);
"""


@contextlib.contextmanager
def chromium():
    """A driver with a profile of its own; skips the test where there is no browser or no selenium."""
    webdriver = pytest.importorskip('selenium.webdriver', reason='needs selenium: pip install selenium')
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    binary = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
    driver_path = shutil.which('chromedriver')
    if not binary or not driver_path:
        pytest.skip('needs chromium and chromedriver (Debian: chromium chromium-driver)')
    profile = tempfile.mkdtemp(prefix='mmrm-browser-')
    options = Options()
    options.binary_location = binary
    for flag in (*FLAGS, f'--user-data-dir={profile}'):
        options.add_argument(flag)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL'})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def set_screen(driver, width: int = 1200, height: int = 1000, dark: bool = False) -> None:
    size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
    driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', size)
    scheme = [dict(name='prefers-color-scheme', value='dark' if dark else 'light')]
    driver.execute_cdp_cmd('Emulation.setEmulatedMedia', dict(features=scheme))


def errors(driver) -> list:
    """What the console holds against the page."""
    return [entry['message'] for entry in driver.get_log('browser') if entry['level'] in ('SEVERE', 'WARNING')]


def contrasts(driver) -> list:
    return driver.execute_script(CONTRASTS)
