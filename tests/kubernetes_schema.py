"""The part of Kubernetes 1.37's own schema that the files of launch/ use.

The whole (22 MB, the package kubernetes-validate) is used where it is installed.
"""


def exactly(required, **optional):
    """An object of these fields and no others, as the API server's strict validation has it."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
LABELS = {"type": "object", "additionalProperties": TEXT}
NUMBER = {"type": "integer", "minimum": 0}


def many(item):
    return {"type": "array", "items": item, "minItems": 1}


SERVICE = exactly(
    {
        "apiVersion": {"const": "v1"},
        "kind": {"const": "Service"},
        "metadata": exactly({"name": NAME}),
        "spec": exactly(
            {
                "clusterIP": {"const": "None"},
                "publishNotReadyAddresses": {"const": True},
                "selector": LABELS,
                "ports": many(exactly({"name": NAME, "port": NUMBER})),
            }
        ),
    }
)
AFFINITY = exactly(
    {
        "podAntiAffinity": exactly(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": many(
                    exactly(
                        {"topologyKey": TEXT, "labelSelector": exactly({"matchLabels": LABELS})}
                    )
                )
            }
        )
    }
)
SECRET = exactly({"secretKeyRef": exactly({"name": NAME, "key": TEXT})})
FIELD = exactly({"fieldRef": exactly({"fieldPath": {"const": "spec.nodeName"}})})
ENV = {
    "oneOf": [
        exactly({"name": TEXT, "value": TEXT}),  # a number unquoted is refused
        exactly({"name": TEXT, "valueFrom": {"oneOf": [SECRET, FIELD]}}),
    ]
}
CONTAINER = exactly(
    {
        "name": NAME,
        "image": TEXT,
        "command": many(TEXT),
        "env": many(ENV),
    },
    resources=exactly({"limits": LABELS | {"additionalProperties": {"type": "integer"}}}),
    volumeMounts=many(exactly({"name": NAME, "mountPath": TEXT})),
)
EMPTY = exactly({}, medium={"enum": ["", "Memory"]}, sizeLimit={"pattern": "^[0-9]+[KMGT]i$"})
POD = exactly(
    {
        "restartPolicy": {"enum": ["Never", "OnFailure"]},
        "containers": many(CONTAINER),
    },
    subdomain=NAME,
    affinity=AFFINITY,
    volumes=many(exactly({"name": NAME, "emptyDir": EMPTY})),
)
JOB_SPEC = exactly(
    {
        "backoffLimit": {"const": 0},
        "template": exactly({"metadata": exactly({"labels": LABELS}), "spec": POD}),
    },
    completionMode={"const": "Indexed"},
    completions=NUMBER,
    parallelism=NUMBER,
    activeDeadlineSeconds=NUMBER,
)
JOB = exactly(
    {
        "apiVersion": {"const": "batch/v1"},
        "kind": {"const": "Job"},
        "metadata": exactly({"name": NAME}),
        "spec": JOB_SPEC,
    }
)
