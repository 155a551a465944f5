"""The part of Kubernetes' API that docker/kubernetes uses, as models that refuse any other field.

Field names, types and choices are facts of the custom resource definitions of kubeflow/mpi-operator
(kubeflow.org/v2beta1), kubeflow/training-operator (kubeflow.org/v1) and kubernetes-sigs/jobset
(jobset.x-k8s.io/v1alpha2), and of Kubernetes' API reference for the rest. A manifest that needs
another field gets it added here, from there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = ["JobSet", "MPIJob", "PyTorchJob"]

Count = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(strict=True)]
"""YAML reads an unquoted 2 as a number, which Kubernetes refuses where it wants a string."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Quantity = Annotated[str, Field(strict=True, pattern=r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
CleanPodPolicy = Literal["All", "Running", "None"]


class Object(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Metadata(Object):
    name: Name
    namespace: Name | None = None
    labels: dict[str, Text] = {}
    annotations: dict[str, Text] = {}


class FieldReference(Object):
    field_path: Text


class ValueFrom(Object):
    field_ref: FieldReference


class Variable(Object):
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    value: Text | None = None
    value_from: ValueFrom | None = None


class Resources(Object):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class Mount(Object):
    name: Name
    mount_path: Text
    read_only: bool = False


class EmptyDir(Object):
    medium: Literal["", "Memory"] = ""
    size_limit: Quantity | None = None


class Claim(Object):
    claim_name: Name


class Volume(Object):
    name: Name
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: Claim | None = None


class Port(Object):
    port: Annotated[int, Field(strict=True, ge=1, le=65535)]


class Probe(Object):
    tcp_socket: Port
    period_seconds: Count = 10


class Container(Object):
    name: Name
    image: Text
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    command: list[Text] = []
    args: list[Text] = []
    env: list[Variable] = []
    resources: Resources = Resources()
    volume_mounts: list[Mount] = []
    readiness_probe: Probe | None = None


class PodSpec(Object):
    restart_policy: Literal["Always", "OnFailure", "Never"] | None = None
    containers: Annotated[list[Container], Field(min_length=1)]
    init_containers: list[Container] = []
    volumes: list[Volume] = []


class PodTemplate(Object):
    spec: PodSpec


class ReplicaSpec(Object):
    replicas: Count = 1
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] = "Never"
    template: PodTemplate


class RunPolicy(Object):
    clean_pod_policy: CleanPodPolicy | None = None
    ttl_seconds_after_finished: Count | None = None
    active_deadline_seconds: Count | None = None
    backoff_limit: Count | None = None
    suspend: bool = False


class MPIReplicas(Object):
    launcher: Annotated[ReplicaSpec, Field(alias="Launcher")]
    worker: Annotated[ReplicaSpec, Field(alias="Worker")]


class MPIJobSpec(Object):
    slots_per_worker: Count = 1
    run_launcher_as_worker: bool = False
    ssh_auth_mount_path: Text = "/root/.ssh"
    launcher_creation_policy: Literal["AtStartup", "WaitForWorkersReady"] = "AtStartup"
    mpi_implementation: Literal["OpenMPI", "Intel", "MPICH"] = "OpenMPI"
    run_policy: RunPolicy = RunPolicy()
    mpi_replica_specs: MPIReplicas


class MPIJob(Object):
    api_version: Literal["kubeflow.org/v2beta1"]
    kind: Literal["MPIJob"]
    metadata: Metadata
    spec: MPIJobSpec


class PyTorchReplicas(Object):
    master: Annotated[ReplicaSpec, Field(alias="Master")]
    worker: Annotated[ReplicaSpec, Field(alias="Worker")]


class PyTorchJobSpec(Object):
    nproc_per_node: Text = "auto"
    run_policy: RunPolicy = RunPolicy()
    pytorch_replica_specs: PyTorchReplicas


class PyTorchJob(Object):
    api_version: Literal["kubeflow.org/v1"]
    kind: Literal["PyTorchJob"]
    metadata: Metadata
    spec: PyTorchJobSpec


class JobSpec(Object):
    completion_mode: Literal["NonIndexed", "Indexed"] = "NonIndexed"
    completions: Count = 1
    parallelism: Count = 1
    backoff_limit: Count = 6
    active_deadline_seconds: Count | None = None
    template: PodTemplate


class JobTemplate(Object):
    spec: JobSpec


class ReplicatedJob(Object):
    name: Name
    replicas: Count = 1
    template: JobTemplate


class Network(Object):
    enable_dns_hostnames: Annotated[bool, Field(alias="enableDNSHostnames")] = True
    subdomain: Name | None = None
    publish_not_ready_addresses: bool = True


class SuccessPolicy(Object):
    operator: Literal["All", "Any"]
    target_replicated_jobs: list[Name] = []


class FailurePolicy(Object):
    max_restarts: Count = 0


class JobSetSpec(Object):
    network: Network = Network()
    success_policy: SuccessPolicy | None = None
    failure_policy: FailurePolicy | None = None
    ttl_seconds_after_finished: Count | None = None
    suspend: bool = False
    replicated_jobs: list[ReplicatedJob]


class JobSet(Object):
    api_version: Literal["jobset.x-k8s.io/v1alpha2"]
    kind: Literal["JobSet"]
    metadata: Metadata
    spec: JobSetSpec
