//! The fields of a spec that bring variables, volumes and credentials into a container, whichever kind
//! has them.

use neptune_api::{
    EnvFromSource, ModelServer, SecretReference, ServerOverrides, Volume, VolumeMount, WorkerSpec,
    WorkerVariable,
};

/// What a container gets of variables, volumes and credentials, as its spec has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContainerInputs<'a> {
    /// The variables, by value or by reference.
    pub env: &'a [WorkerVariable],
    /// The objects of which each key is a variable.
    pub env_from: &'a [EnvFromSource],
    /// The volumes that `volume_mounts` mount.
    pub volumes: &'a [Volume],
    /// The places of the volumes.
    pub volume_mounts: &'a [VolumeMount],
    /// The Secrets with credentials of registries.
    pub image_pull_secrets: &'a [SecretReference],
}

impl<'a> From<&'a WorkerSpec> for ContainerInputs<'a> {
    fn from(spec: &'a WorkerSpec) -> Self {
        Self {
            env: &spec.env,
            env_from: &spec.env_from,
            volumes: &spec.volumes,
            volume_mounts: &spec.volume_mounts,
            image_pull_secrets: &spec.image_pull_secrets,
        }
    }
}

impl<'a> From<&'a ModelServer> for ContainerInputs<'a> {
    fn from(server: &'a ModelServer) -> Self {
        Self {
            env: &server.env,
            env_from: &server.env_from,
            volumes: &server.volumes,
            volume_mounts: &server.volume_mounts,
            image_pull_secrets: &[],
        }
    }
}

impl<'a> ContainerInputs<'a> {
    /// The inputs of a model server, whose credentials are a field beside it.
    pub fn of_server(
        server: Option<&'a ServerOverrides>,
        image_pull_secrets: &'a [SecretReference],
    ) -> Self {
        let Some(server) = server else { return Self { image_pull_secrets, ..Self::default() } };
        Self {
            env: &server.env,
            env_from: &server.env_from,
            volumes: &server.volumes,
            volume_mounts: &server.volume_mounts,
            image_pull_secrets,
        }
    }
}
