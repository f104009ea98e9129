"""The colors of lines differ enough for normal eyes, for deuteranopes and in gray."""

import math
import re
from importlib.resources import files
from itertools import combinations, pairwise

import pytest

from harness.schema.catalogue import TONES

STYLE = files("reports.page").joinpath("style.css").read_text("utf-8")
LEAST = 15  # CIEDE2000
LEAST_OF_SYSTEMS = 9  # between a part of a profile and a system
LEAST_LIGHTNESS = 7  # L*, of the first four
LUMINANCE = (0.2126, 0.7152, 0.0722)
# Machado, Oliveira and Fernandes 2009, severity 1, in linear light.
DEUTERANOPE = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))


def tones(theme):
    return [named(f"tone-{number}", theme) for number in range(TONES)]


def named(name, theme):
    return linear(re.search(rf"--{name}: light-dark\((#\w{{6}}), (#\w{{6}})\)", STYLE)[1 + (theme == "dark")])


def linear(color):
    values = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def luminance(color):
    return sum(weight * value for weight, value in zip(LUMINANCE, color, strict=True))


def deuteranope(color):
    return [min(1.0, max(0.0, sum(m * c for m, c in zip(row, color, strict=True)))) for row in DEUTERANOPE]


def lab(color):
    r, g, b = color
    xyz = (
        (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883,
    )
    x, y, z = (v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def difference(one, other):
    """Return the CIEDE2000 difference (Sharma, Wu and Dalal 2005) of two colors in L*a*b*."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    gray = 1.5 - 0.5 * math.sqrt(mean**7 / (mean**7 + 25**7))
    c1, c2 = math.hypot(gray * a1, b1), math.hypot(gray * a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, gray * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    hue = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    at = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = 1 - 0.17 * cosine(at - 30) + 0.24 * cosine(2 * at) + 0.32 * cosine(3 * at + 6) - 0.2 * cosine(4 * at - 63)
    by_light = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    by_chroma, by_hue = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    rotation = 60 * math.exp(-(((at - 275) / 25) ** 2))
    blue = -2 * math.sqrt(chroma**7 / (chroma**7 + 25**7)) * math.sin(math.radians(rotation))
    dl, dc, dh = (l2 - l1) / by_light, (c2 - c1) / by_chroma, hue / by_hue
    return math.sqrt(dl**2 + dc**2 + dh**2 + blue * dc * dh)


def cosine(degrees):
    return math.cos(math.radians(degrees))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_measure_is_the_published_one(one, other, expected):
    assert difference(one, other) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("seen", [list, deuteranope])
def test_any_two_tones_differ(theme, seen):
    colors = [lab(seen(tone)) for tone in tones(theme)]
    closest = min((difference(a, b), i, j) for (i, a), (j, b) in combinations(enumerate(colors), 2))
    assert closest[0] >= LEAST, closest


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_four_differ_in_gray(theme):
    lightness = sorted(lab(tone)[0] for tone in tones(theme)[:4])
    assert min(b - a for a, b in pairwise(lightness)) >= LEAST_LIGHTNESS, lightness


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_parts_of_a_profile_differ_from_each_other_and_from_every_system(theme):
    style = files("reports.profiles").joinpath("section.css").read_text("utf-8")
    found = re.findall(r"--part-\w+: light-dark\((#\w{6}), (#\w{6})\)", style)
    parts = [linear(pair[theme == "dark"]) for pair in found]
    assert len(parts) == 6
    for seen in (list, deuteranope):
        assert min(difference(lab(seen(a)), lab(seen(b))) for a, b in combinations(parts, 2)) >= LEAST
    assert min(difference(lab(part), lab(tone)) for part in parts for tone in tones(theme)) >= LEAST_OF_SYSTEMS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_and_lines_have_the_contrast_of_wcag_aa(theme):
    def ratio(name, under):
        low, high = sorted(luminance(named(each, theme)) for each in (name, under))
        return (high + 0.05) / (low + 0.05)

    limits = dict.fromkeys(("ink", "muted", "link", "good", "bad"), 4.5) | {f"tone-{n}": 3 for n in range(TONES)}
    for under in ("paper", "raised"):
        assert [name for name, least in limits.items() if ratio(name, under) < least] == []
