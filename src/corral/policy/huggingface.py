"""The files of a model repository on the Hugging Face Hub, as data; writing them needs no network.

`README.md` with a model index, which the Hub shows, `config.json`, and the weights, which are the policy file itself.
"""

import json
from collections.abc import Mapping
from typing import Any

from corral.policy.file import Policy

README, CONFIG, WEIGHTS, ONNX, CERTIFICATE = ("README.md", "config.json", "model.npz", "model.onnx", "certificate.json")


def files(policy: Policy, algorithm: str, measured: Mapping[str, float], certificate: str | None) -> dict[str, str]:
    """The text files of the repository, by name; `measured` are the numbers of the model index."""
    found = {README: _card(policy, algorithm, measured, certificate), CONFIG: _config(policy, algorithm)}
    return found | ({CERTIFICATE: certificate} if certificate else {})


def _config(policy: Policy, algorithm: str) -> str:
    said = {"library_name": "corral", "algorithm": algorithm, "policy_sha256": policy.sha256, "weights": WEIGHTS}
    return json.dumps(said | dict(policy.about), indent=1) + "\n"


def _card(policy: Policy, algorithm: str, measured: Mapping[str, float], certificate: str | None) -> str:
    env, constraints = policy.about["env"]["name"], policy.about["constraints"]
    header = {
        "library_name": "corral",
        "tags": ["reinforcement-learning", "safe-reinforcement-learning", "constrained-policy-optimization", env],
        "model-index": [
            {
                "name": f"{algorithm}-{env}",
                "results": [
                    {
                        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
                        "dataset": {"name": env, "type": env},
                        "metrics": [{"type": name, "name": name, "value": value} for name, value in measured.items()],
                    }
                ],
            }
        ],
    }
    limits = "\n".join(
        f"- {c['name']}: {c['description'] or 'cost'}, limit {c['limit']:g} per episode" for c in constraints
    )
    sure = _certified(json.loads(certificate)) if certificate else "No certificate was exported with this policy."
    drawn = certificate is not None and json.loads(certificate)["policy"]["actions"] == "drawn"
    ask = "policy(observation, deterministic=False)  # drawn, as certified" if drawn else "policy(observation)"
    # JSON is YAML: the Hub reads the header all the same.
    return f"""---
{_yaml(header)}---

# {algorithm} in {env}

A policy trained by [Corral](https://github.com/corral-rl/corral) to earn as much as it can while its costs stay under
limits:

{limits or "- no constraints"}

{sure}

```python
import corral.policy

policy = corral.policy.load("{WEIGHTS}")  # NumPy only
action = {ask}
```

SHA-256 of `{WEIGHTS}`: `{policy.sha256}`
"""


def _yaml(header: Mapping[str, Any]) -> str:
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in header.items())


def _certified(certificate: Mapping[str, Any]) -> str:
    told = "; ".join(
        f"{c['name']} {_bound(c)} (limit {c['limit']:g}, {c['verdict']})" for c in certificate["constraints"]
    )
    count = certificate["episodes"]["count"]
    return (
        f"**{certificate['verdict'].capitalize()}** with confidence {certificate['confidence']:g}, from {count:,} fresh "
        f"episodes with actions that are {certificate['policy']['actions']}: expected cost of an episode, {told}. See "
        f"`{CERTIFICATE}`."
    )


def _bound(constraint: Mapping[str, Any]) -> str:
    """The bound that the verdict rests on: the confidence is that of one of the two, not of both together."""
    if constraint["verdict"] == "refuted":
        return f"at least {constraint['low']:.4g}"
    return f"at most {constraint['high']:.4g}"
