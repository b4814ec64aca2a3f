"""Statements about a constraint, and the certificate file: what it says follows from its episodes, or it is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

from corral.certificates import bounds, certificate
from corral.certificates.certificate import Certificate
from corral.certification.check import check
from corral.errors import CorralError


def costs(mean: float, n: int = 2000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).binomial(100, mean / 100, n).astype(float)


def made(limit: float = 25.0, anytime: bool = False) -> Certificate:
    values = {"x": costs(20), "y": costs(10, seed=1)}
    statements = tuple(certificate.state(name, limit, own, 100.0, 0.025, anytime) for name, own in values.items())
    return Certificate(
        verdict=certificate.overall(statements),
        confidence=0.95,
        constraints=statements,
        earned={"mean": 1.0, "half_reach": 0.5, "low": None},
        policy={"file": "p.npz", "sha256": "0" * 64, "actions": "drawn"},
        environment={"name": "walk", "task": {}, "horizon": 100, "engine": "Walk on cpu"},
        episodes={
            "count": 2000,
            "form": "anytime" if anytime else "fixed",
            "best_of": 1,
            "broken": 0,
            "seed": 0,
            "stream": 0,
        },
        versions={},
        assumptions=("none",),
        costs={name: own.tolist() for name, own in values.items()},
        made="2026-01-01T00:00:00+00:00",
    )


@pytest.mark.parametrize("anytime", [False, True])
def test_a_limit_is_certified_above_the_upper_bound_refuted_under_the_lower_one_and_open_between(anytime):
    own = costs(20)
    low, high = bounds.mean_interval(own, 100.0, 0.05, anytime=anytime)
    for limit, verdict in (
        (high + 0.01, "certified"),
        (high - 0.01, "not yet"),
        (low, "not yet"),
        (low - 0.01, "refuted"),
    ):
        found = certificate.state("x", limit, own, 100.0, 0.05, anytime)
        assert (found.low, found.high, found.verdict) == (low, high, verdict)


def test_single_episodes_have_a_probability_and_a_quantile_with_the_same_confidence():
    own = costs(20)
    found = certificate.state("x", 25.0, own, 100.0, 0.05, False)
    assert found.exceeds == bounds.upper_probability(int(np.sum(own > 25)), len(own), 0.05)
    assert found.quantile == bounds.upper_quantile(own, 0.95, 0.05)
    watched = certificate.state("x", 25.0, own, 100.0, 0.05, True)
    assert watched.exceeds == bounds.upper_mean((own > 25).astype(float), 1.0, 0.05, anytime=True) > found.exceeds
    assert watched.quantile is None  # both hold for a number of episodes that was fixed beforehand only
    assert watched.bernstein is None


def test_the_estimate_of_how_many_more_episodes_decide_is_about_right():
    """Episodes of which half cost 16 and half 24, in random pairs: from the first 200, how many it takes in all."""
    generator = np.random.default_rng(0)
    many = np.array([16.0, 24.0])[np.argsort(generator.random((50_000, 2)), axis=1)].ravel()
    first = certificate.state("x", 20.4, many[:200], 100.0, 0.05, False)
    assert first.verdict == "not yet"
    assert first.more is not None
    needed = 200 + first.more
    assert certificate.state("x", 20.4, many[: int(1.2 * needed)], 100.0, 0.05, False).verdict == "certified"
    assert certificate.state("x", 20.4, many[: int(0.8 * needed)], 100.0, 0.05, False).verdict == "not yet"


def test_no_number_of_episodes_decides_a_cost_that_lies_on_its_limit():
    assert certificate.state("x", 0.5, np.array([0.0, 1.0]), 1.0, 0.05, False).more is None


def test_a_policy_is_refuted_if_one_constraint_is_and_certified_if_all_are():
    found = {v: replace(made().constraints[0], verdict=v) for v in ("certified", "refuted", "not yet")}
    assert certificate.overall((found["certified"], found["certified"])) == "certified"
    assert certificate.overall((found["certified"], found["not yet"])) == "not yet"
    assert certificate.overall((found["not yet"], found["refuted"])) == "refuted"


@pytest.mark.parametrize("anytime", [False, True])
def test_a_certificate_reads_back_and_its_bounds_follow_from_its_episodes(anytime, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(made(anytime=anytime).text())
    again = certificate.read(path)
    assert again == made(anytime=anytime)
    certificate.verify(again)


def test_an_altered_certificate_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(made().text().replace('"limit": 25.0', '"limit": 26.0'))
    with pytest.raises(CorralError, match="has been altered"):
        certificate.read(path)
    path.write_text("[]")
    with pytest.raises(CorralError, match="is no certificate"):
        certificate.read(path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("high", 20.0, "says high 20.0 of x"), ("limit", 1.0, "says exceeds 0.1"), ("exceeds", 0.0, "says exceeds")],
)
def test_a_certificate_whose_numbers_do_not_follow_from_its_episodes_is_refused_even_with_a_right_hash(
    name, value, message, tmp_path
):
    whole = made()
    forged = replace(whole, constraints=(replace(whole.constraints[0], **{name: value}), whole.constraints[1]))
    (tmp_path / "c.json").write_text(forged.text())
    with pytest.raises(CorralError, match=message):
        certificate.verify(certificate.read(tmp_path / "c.json"))


def forged(change) -> str:
    """The text of a certificate whose content was changed, and its hash computed again."""
    content = json.loads(made().text())
    del content["sha256"]
    change(content)
    return json.dumps(content | {"sha256": certificate._digest(content)})


def put(*path, value):
    """A change of one entry; without a value it is removed."""

    def change(content):
        for name in path[:-1]:
            content = content[name]
        content[path[-1]] = value

    return change


MALFORMED = {
    "no constraints": lambda content: content.pop("constraints"),
    "constraints that are a number": put("constraints", value=3),
    "no constraint at all": put("constraints", value=[]),
    "the same constraint twice": lambda content: content["constraints"].append(content["constraints"][0]),
    "a constraint with a word too many": put("constraints", 0, "colour", value="red"),
    "a limit that is a word": put("constraints", 0, "limit", value="low"),
    "a largest cost that is missing": put("constraints", 0, "largest", value=None),
    "costs that are words": put("costs", "x", value=["a", "b"]),
    "costs of no constraint": put("costs", value={}),
    "a confidence that is a word": put("confidence", value="high"),
    "a policy that is none": put("policy", value=None),
    "a policy without a file": lambda content: content["policy"].pop("file"),
    "a file that is a number": put("policy", "file", value=7),
    "a horizon that is a word": put("environment", "horizon", value="long"),
    "a task that is a list": put("environment", "task", value=[1]),
    "a parameter that is a word": put("environment", "task", value={"speed": "fast"}),
    "another form": put("episodes", "form", value="loose"),
    "a best of none": put("episodes", "best_of", value=0),
    "a format that is a word": put("corral_certificate", value="one"),
    "a part too many": put("colour", value="red"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_content_is_refused_in_one_line_even_with_a_right_hash(name, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(forged(MALFORMED[name]))
    with pytest.raises(CorralError) as refused:
        check(path, tmp_path / "never opened.npz")
    said = str(refused.value)
    assert "\n" not in said
    assert "is not at" not in said  # what comes after its content


@pytest.mark.parametrize(
    ("old", "new"), [('"limit": 25.0', '"limit": 99.0, "limit": 25.0'), ('"x": [', '"x": 1, "x": [')]
)
def test_a_name_that_comes_twice_is_refused(old, new, tmp_path):
    """Readers differ in which of the two they take: this one would find the hash right."""
    path, text = tmp_path / "c.json", made().text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(CorralError, match="is in it twice"):
        certificate.read(path)


def test_a_certificate_with_fewer_episodes_than_it_says_is_refused():
    whole = made()
    with pytest.raises(CorralError, match="the costs of 1999 episodes"):
        certificate.verify(replace(whole, costs=whole.costs | {"x": whole.costs["x"][1:]}))


def test_a_certificate_is_plain_json():
    assert json.loads(made().text())["corral_certificate"] == 1
