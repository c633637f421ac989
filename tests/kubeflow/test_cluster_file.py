"""The cluster file: what a step asks for in the end, and one line for each mistake."""

from pathlib import Path

import pytest
import yaml
from kfp_api import EXAMPLE

from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.cluster import Cluster, Images, TimeToLive
from gnn_encoder.kubeflow.package import load_cluster
from gnn_encoder.kubeflow.step_needs import SecurityContext, StepNeeds
from gnn_encoder.settings.pipeline import PIPELINES

STEPS = PIPELINES["train"]


def test_a_step_is_laid_over_the_defaults() -> None:
    cluster = Cluster.model_validate(
        {
            "images": {"cpu": "a", "gpu": "b"},
            "defaults": {
                "cpu": 2,
                "environment": {"ONE": 1, "TWO": True},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "timeout_seconds": 60,
            },
            "steps": {
                "train_gnn": {
                    "cpu": {"limit": 4},
                    "gpu": {},
                    "environment": {"TWO": "other"},
                    "tolerations": [],
                    "timeout_seconds": None,
                }
            },
        }
    )
    other, trained = cluster.needs("ingest"), cluster.needs("train_gnn")
    assert other.cpu and (other.cpu.request, other.cpu.limit) == ("2", "2")
    assert trained.cpu and (trained.cpu.request, trained.cpu.limit) == ("2", "4")
    assert other.environment == {"ONE": "1", "TWO": "true"}
    assert trained.environment == {"ONE": "1", "TWO": "other"}
    assert (len(other.tolerations), len(trained.tolerations)) == (1, 0)
    assert (other.timeout_seconds, trained.timeout_seconds) == (60, None)
    assert (cluster.image("ingest"), cluster.image("train_gnn")) == ("a", "b")


def test_the_example_says_every_key() -> None:
    cluster = load_cluster(EXAMPLE)
    assert cluster.model_fields_set == set(Cluster.model_fields)
    assert cluster.images.model_fields_set == set(Images.model_fields)
    said = set().union(*(needs.model_fields_set for needs in (cluster.defaults, *cluster.steps.values())))
    assert said == set(StepNeeds.model_fields)
    assert cluster.ttl_seconds.model_fields_set == set(TimeToLive.model_fields)
    assert cluster.defaults.security.model_fields_set == set(SecurityContext.model_fields)
    heavy = {step for step in STEPS if step.startswith("train_")}
    heavy |= {"dense_retrieve", "score_candidates", "generate_queries", "build_graph", "encode_corpus"}
    assert {step for step in STEPS if cluster.needs(step).gpu} == heavy


def refusal(text: str, path: Path) -> str:
    """What is said of a cluster file with that text."""
    path.write_text(text, "utf-8")
    with pytest.raises(UserError) as caught:
        load_cluster(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("namespaces: x", "unknown key 'namespaces': did you mean 'namespace'? known are caching, deadline_seconds, "),
        ("steps: {train_gnn: {gpus: 1}}", "steps.train_gnn: unknown key 'gpus': did you mean 'gpu'?"),
        ("steps: {train_gn: {}}", "unknown step 'train_gn': did you mean 'train_gnn'?"),
        ("defaults: {gpu: {count: 0}}", "defaults.gpu.count: "),
        ("defaults: {memory: 3 GB}", "defaults.memory.request: "),
        ("defaults: {memory: NaN}", "defaults.memory.request: must be a quantity above 0"),
        ("defaults: {memory: .inf}", "defaults.memory.request: must be a quantity above 0"),
        ("defaults: {memory: 1e999999999}", "defaults.memory.request: must be a quantity above 0"),
        ("defaults: {timeout_seconds: 12345678901234567890}", "defaults.timeout_seconds: Input should be less than"),
        ("defaults: {cpu: {request: 4, limit: 2}}", "defaults.cpu: request 4 is more than limit 2"),
        ("defaults: {cpu: 4}\nsteps: {ingest: {cpu: {limit: 500m}}}", "steps.ingest with defaults: "),
        ("defaults: {tolerations: [{key: a, operator: Exists, value: b}]}", "Exists takes no value"),
        ("defaults: {tolerations: [{value: b}]}", "without a key the operator must be Exists"),
        ("defaults: {affinity: [{match: [], weight: 1}]}", "defaults.affinity.0.match"),
        ("defaults: {affinity: [{match: [{key: a, values: [b]}], weight: 101}]}", "defaults.affinity.0.weight"),
        ("defaults: {volumes: [{mount: /a}]}", "give claim"),
        ("defaults: {volumes: [{mount: /a, claim: c, size: 1Gi}]}", "give claim"),
        ("defaults: {volumes: [{mount: /a, claim: c, config_map: m}]}", "give claim"),
        ("defaults: {volumes: [{mount: /a, config_map: m, sub_path: b}]}", "sub_path goes with claim"),
        ("defaults: {volumes: [{mount: /a, claim: c, medium: Memory}]}", "medium or storage_class with size"),
        ("defaults: {volumes: [{mount: /a, size: 1Gi, medium: Memory, storage_class: s}]}", "medium or storage_class"),
        ("defaults: {volumes: [{mount: /a, size: 1Gi, sub_path: b}]}", "sub_path goes with claim"),
        ("defaults: {volumes: [{mount: /s3, claim: c}]}", "mount /s3 is KFP's own"),
        ("defaults: {ephemeral_storage: 1Gi, volumes: [{mount: /tmp, claim: c}]}", "two volumes at /tmp"),
        (
            "defaults: {timeout_seconds: 600, retries: {count: 1, within_seconds: 600}}",
            "or the first would be the last",
        ),
        ("defaults: {retries: {count: 1, factor: 1.5}}", "defaults.retries.factor"),
        ("pipeline_root: /mnt/pipelines", "pipeline_root: "),
        # What Kubernetes refuses when it creates the pod.
        ("defaults: {memory: .nan}", "defaults.memory.request: must be a quantity"),
        ("defaults: {cpu: .inf}", "defaults.cpu.request: must be a quantity"),
        ("defaults: {cpu: 0}", "defaults.cpu.request: must be a quantity"),
        ("defaults: {memory: '1_000'}", "defaults.memory.request: must be a quantity"),
        ("defaults: {memory: '٣'}", "defaults.memory.request: must be a quantity"),
        ("defaults: {environment: {A: b}, secrets: {s: {k: A}}}", "A is set twice: give it in environment or once"),
        (
            "defaults: {environment: {A: b}}\nsteps: {ingest: {config_maps: {m: {k: A}}}}",
            "steps.ingest with defaults: A",
        ),
        ("defaults: {secrets: {s: {k: A}, t: {k: A}}}", "A is set twice"),
        ("defaults: {environment: {'1A': b}}", "defaults.environment.1A"),
        ("defaults: {secrets: {S_T: {k: A}}}", "defaults.secrets.S_T"),
        ("defaults: {secrets: {s: {'k k': A}}}", "defaults.secrets.s.k k"),
        ("defaults: {affinity: [{match: [{key: a}]}]}", "operator In takes values"),
        (
            "defaults: {affinity: [{match: [{key: a, operator: Exists, values: [b]}]}]}",
            "operator Exists takes no values",
        ),
        (
            "defaults: {affinity: [{match: [{key: a, operator: Gt, values: [b]}]}]}",
            "operator Gt takes one whole number",
        ),
        (
            "defaults: {affinity: [{match: [{key: a, operator: Lt, values: [1, 2]}]}]}",
            "operator Lt takes one whole number",
        ),
        ("defaults: {affinity: [{match: [{key: a b, operator: Exists}]}]}", "defaults.affinity.0.match.0.key"),
        ("defaults: {tolerations: [{key: a, operator: Exists, seconds: 3}]}", "seconds goes with effect NoExecute"),
        (
            "defaults: {tolerations: [{key: a, operator: Exists, effect: NoSchedule, seconds: 3}]}",
            "seconds goes with effect NoExecute",
        ),
        ("defaults: {node_selector: {a: b c}}", "defaults.node_selector.a"),
        ("defaults: {gpu: {type: nvidia gpu}}", "defaults.gpu.type"),
        ("defaults: {gpu: {count: 3000000000}}", "defaults.gpu.count"),
        ("defaults: {timeout_seconds: 3000000000}", "defaults.timeout_seconds"),
        ("defaults: {retries: {count: 3000000000}}", "defaults.retries.count"),
        ("defaults: {volumes: [{mount: /a, claim: c.d}]}", "defaults.volumes.0.claim"),
        ("defaults: {volumes: [{mount: /a, config_map: c.d}]}", "defaults.volumes.0.config_map"),
        ("defaults: {volumes: [{mount: /a, claim: c}, {mount: /b, config_map: c}]}", "are named c"),
        ("defaults: {volumes: [{mount: /a, secret: c}, {mount: /b, config_map: c}]}", "are named c"),
        ("defaults: {volumes: [{mount: /a, secret: c.d}]}", "defaults.volumes.0.secret"),
        ("defaults: {volumes: [{mount: /a, secret: c, sub_path: b}]}", "sub_path goes with claim"),
        ("defaults: {labels: {a b: c}}", "defaults.labels.a b"),
        ("defaults: {labels: {-a: c}}", "defaults.labels.-a"),
        ("defaults: {labels: {A.example/a: c}}", "defaults.labels.A.example/a"),
        ("defaults: {labels: {a.-/a: c}}", "defaults.labels.a.-/a"),
        (f"defaults: {{labels: {{{'a' * 254}/a: c}}}}", "defaults.labels.aaaa"),
        (f"defaults: {{labels: {{{'a' * 64}: c}}}}", "defaults.labels.aaaa"),
        (f"defaults: {{labels: {{a: {'c' * 64}}}}}", "defaults.labels.a"),
        ("defaults: {labels: {a: b c}}", "defaults.labels.a"),
        ("defaults: {labels: {a: [b]}}", "defaults.labels.a"),
        ("defaults: {labels: {pipeline/runid: b}}", "pipeline/runid belongs to KFP and Argo"),
        ("defaults: {annotations: {workflows.argoproj.io/x: b}}", "workflows.argoproj.io/x belongs to KFP and Argo"),
        ("defaults: {annotations: {sidecar.istio.io/inject: true}}", "sidecar.istio.io/inject belongs to KFP and Argo"),
        ("defaults: {annotations: {a: 'x {{workflow.name}}'}}", "a has a value with {{, which Argo would replace"),
        ("steps: {ingest: {labels: {a: b, c}}}", "steps.ingest.labels.c"),
        ("defaults: {security: {run_as_user: -1}}", "defaults.security.run_as_user"),
        ("defaults: {security: {run_as_user: '1000'}}", "defaults.security.run_as_user"),
        ("defaults: {security: {run_as_user: true}}", "defaults.security.run_as_user"),
        ("defaults: {security: {run_as_group: 2147483648}}", "defaults.security.run_as_group"),
        ("defaults: {security: {run_as_non_root: maybe}}", "defaults.security.run_as_non_root"),
        ("defaults: {security: {fs_group: 1}}", "unknown key 'fs_group'"),
        ("defaults: {security: {run_as_user: 0, run_as_non_root: true}}", "run_as_non_root forbids run_as_user 0"),
        (
            "defaults: {security: {run_as_non_root: true}}\nsteps: {ingest: {security: {run_as_user: 0}}}",
            "steps.ingest with defaults: run_as_non_root forbids",
        ),
        ("ttl_seconds: 59", "ttl_seconds.ended: Input should be greater than or equal to 60"),
        ("ttl_seconds: {failed: 0}", "ttl_seconds.failed"),
        ("ttl_seconds: {success: 60}", "unknown key 'success'"),
        ("deadline_seconds: 0", "deadline_seconds: "),
        ("deadline_seconds: 3000000000", "deadline_seconds: "),
        ("defaults: {volumes: [{mount: /s3/, claim: c}]}", "mount /s3 is KFP's own"),
        ("defaults: {volumes: [{mount: //s3, claim: c}]}", "mount /s3 is KFP's own"),
        ("defaults: {volumes: [{mount: /a/../gcs/., claim: c}]}", "mount /gcs is KFP's own"),
        ("defaults: {volumes: [{mount: //, claim: c}]}", "mount / is the image's own"),
        ("defaults: {volumes: [{mount: '/a:b', claim: c}]}", "defaults.volumes.0.mount"),
        ("defaults: {ephemeral_storage: 1Gi, volumes: [{mount: /tmp/, claim: c}]}", "two volumes at /tmp"),
        ("defaults: {volumes: [{mount: /a, claim: c}, {mount: /a/, claim: d}]}", "two volumes at /a"),
        ("defaults: {volumes: [{mount: /a, claim: c, sub_path: /b}]}", "defaults.volumes.0.sub_path"),
        ("defaults: {volumes: [{mount: /a, claim: c, sub_path: b/../../d}]}", "sub_path must stay inside"),
        ("images: {pull_policy: Sometimes}", "images.pull_policy"),
        ("images: {pull_secrets: [a b]}", "images.pull_secrets.0"),
        ("- a list", "Input should be"),
        ("a: [", "is not valid YAML: line 1: "),
    ],
)
def test_a_mistake_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    error = refusal(text, tmp_path / "cluster.yaml")
    assert error.startswith(f"{tmp_path}/cluster.yaml")
    assert words in error and "\n" not in error


def test_annotations_of_a_pod_are_limited_together(tmp_path: Path) -> None:
    half = 2**17 - 1
    error = refusal(f"defaults: {{annotations: {{a: {'x' * half}, b: {'ü' * half}}}}}", tmp_path / "cluster.yaml")
    assert error.endswith("defaults.annotations: 393,215 bytes are more than a pod may have (262,144)")
    (tmp_path / "cluster.yaml").write_text(f"defaults: {{annotations: {{a: {'x' * half}, b: {'x' * half}}}}}", "utf-8")
    assert load_cluster(tmp_path / "cluster.yaml").defaults.annotations


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {memory: 1_000, cpu: 1e1, ephemeral_storage: 1.5Gi}",  # YAML's own 1000
        "defaults: {memory: 1E, cpu: 100m}",
        "defaults: {volumes: [{mount: /a, claim: c, sub_path: b/..d}, {mount: /b/, claim: c}]}",  # one volume
        "defaults: {volumes: [{mount: /s3/data, claim: c}, {mount: /b, size: 1Gi, storage_class: fast.ssd}]}",
        "defaults: {affinity: [{match: [{key: a.b/C_d, operator: Gt, values: [3]}, {key: a, values: ['']}]}]}",
        "defaults: {tolerations: [{operator: Exists, effect: NoExecute, seconds: 0}]}",
        "defaults: {environment: {A.b-C: 1}, secrets: {s.t: {k.l: B}, u: {k: C}}}",
        "images: {pull_secrets: [registry.example.com], pull_policy: Always}",
        "defaults: {labels: {kueue.x-k8s.io/queue-name: a, sidecar.istio.io/inject: 'false', c_D.e: 1, f: ''}}",
        "defaults: {annotations: {a: 'any text: ü\\n}}', b: true, c: 3}}",
        "defaults: {security: {run_as_user: 0}}",
        "defaults: {security: {}}",
        "defaults: {volumes: [{mount: /a, secret: c}, {mount: /b, secret: d}]}",
        "ttl_seconds: 60",
        "deadline_seconds: 1",
        "namespace: ''\nservice_account: ''",
    ],
)
def test_what_kubernetes_takes_is_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(text, "utf-8")
    assert load_cluster(tmp_path / "cluster.yaml").model_fields_set


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("defaults: {environment: {MLFLOW_TRACKING_PASSWORD: hunter22}}", "hunter22"),
        ("defaults: {environment: {AWS_SECRET_ACCESS_KEY: wJalrXUtnFEMI}}", "wJalrXUtnFEMI"),
        ("defaults: {environment: {MLFLOW_TRACKING_URI: 'http://me:hunter22@mlflow'}}", "hunter22"),
        ("defaults: {environment: {USER_ID: AKIAIOSFODNN7EXAMPLE}}", "AKIAIOSFODNN7EXAMPLE"),
        ("steps: {ingest: {environment: {HUB: 'hf_abcdefghijklmnopqrstuvwxyz'}}}", "hf_abcdef"),
        ("defaults: {environment: {PGPASSWORD: hunter22}}", "hunter22"),
        ("defaults: {environment: {DB_PASS: hunter22}}", "hunter22"),
        ("defaults: {environment: {dbPassword: hunter22}}", "hunter22"),
        ("defaults: {environment: {SERVICE: sk-proj-abcdef}}", "sk-proj-abcdef"),
        ("defaults: {environment: {STORE: 'https://a.example/b?sp=r&sig=abcdef'}}", "sig=abcdef"),
        ("defaults: {secrets: {store: hunter22}}", "hunter22"),
        ("token: hunter22", "hunter22"),
        ("defaults: {environment: {A: [hunter22}}", "hunter22"),
    ],
)
def test_a_secret_is_refused_and_not_shown(text: str, secret: str, tmp_path: Path) -> None:
    assert secret not in refusal(text, tmp_path / "cluster.yaml")


def test_what_only_sounds_secret_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    plain = {
        "GNN_ENCODER_TOKENS": "/tmp/tokens",
        "TOKENIZERS_PARALLELISM": "false",
        "MLFLOW_TRACKING_AUTH": "a-plugin",
        "AWS_SHARED_CREDENTIALS_FILE": "/aws/credentials",
    }
    path.write_text(yaml.safe_dump({"defaults": {"environment": plain}}), "utf-8")
    assert load_cluster(path).defaults.environment == plain
