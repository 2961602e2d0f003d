//! What the model servers of the node need: models, images, devices, and the values of their Secrets.

use std::{collections::BTreeMap, sync::Arc};

use neptune_agent_core::{
    desired::{Desired, WantedServer},
    domain::{
        artifact::ArtifactSource,
        node_program::NodeProgram,
        served_version::{ServedVersion, images_of, node_program},
    },
};
use neptune_edge_engine::image_pulls::PullLogins;
use neptune_wire::{DeviceRequests, ObjectKey, WorkerName};

use super::{super::node_artifacts::ServerNeeds, ModelServers};
use crate::{
    model_server::instance::ModelServerInstance,
    values::opened::{ServerValues, VersionRole},
};

impl ModelServers {
    /// The models and images of the targets, and the models of the versions to which a server may
    /// return. An image is not pulled while its credentials cannot be read.
    pub fn needs(&self, desired: &Desired, values: &ServerValues) -> ServerNeeds {
        let targets = desired.servers.iter().filter(|(_, server)| server.refusal.is_none());
        let targets = targets.filter_map(|(key, server)| {
            let model = server.serving.model.as_ref()?;
            Some((ArtifactSource::from_model(&key.namespace, model), model.mirrors.clone()))
        });
        let targets: Vec<_> = targets.collect();
        let kept = self.instances.values().flat_map(ModelServerInstance::kept_sources);
        let mut images = BTreeMap::<String, PullLogins>::new();
        for (key, wanted) in &desired.servers {
            let serving = &wanted.serving;
            let logins = match values.of_program(&serving.name, &serving.program) {
                Some(Ok(values)) => Arc::clone(&values.pull),
                Some(Err(_)) => continue,
                None => PullLogins::default(),
            };
            let server = self.instances.get(key).into_iter();
            for image in server.flat_map(|server| server.awaited_images(wanted)) {
                let known = images.entry(image.clone()).or_default();
                if known.is_empty() {
                    *known = Arc::clone(&logins);
                }
            }
        }
        ServerNeeds {
            mirrors: targets.iter().filter(|(_, mirrors)| !mirrors.is_empty()).cloned().collect(),
            sources: targets
                .into_iter()
                .map(|(source, _)| source)
                .chain(kept)
                .chain(desired.training.script_sources())
                .collect(),
            images,
        }
    }

    /// The images of the targets, and of the versions that run or to which a server may return.
    pub fn images<'a>(&'a self, desired: &'a Desired) -> impl Iterator<Item = &'a String> {
        let versions = self.instances.values().flat_map(|server| server.rollout.probed_versions());
        let targets = desired.servers.values().flat_map(|wanted| images_of(&wanted.serving));
        targets.chain(versions.flat_map(|version| images_of(&version.serving)))
    }

    /// What the container of each server requests. A transformer gets no device.
    pub fn device_requests<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = (&'a WorkerName, &'a ObjectKey, &'a DeviceRequests)> {
        desired.servers.iter().filter_map(|(key, wanted)| {
            let container = self.instances.get(key)?.container()?;
            Some((&wanted.serving.name, key, &container.spec.devices))
        })
    }

    /// The programs of the targets, and of the versions that run or to which a server may return.
    pub fn programs<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = ((WorkerName, VersionRole), NodeProgram<'a>)> {
        self.named(desired).flat_map(|(server, wanted)| {
            let is_valid = wanted.refusal.is_none();
            let target = is_valid.then(|| node_program(&wanted.serving, &wanted.uid));
            let of_version = |version: &'a ServedVersion| version.node_program(&server.uid);
            let programs = [
                (VersionRole::Target, target),
                (VersionRole::Current, server.rollout.current.as_ref().map(of_version)),
                (VersionRole::LastGood, server.rollout.last_good.as_ref().map(of_version)),
            ];
            let programs = programs.into_iter();
            programs
                .filter_map(|(role, program)| Some(((wanted.serving.name.clone(), role), program?)))
        })
    }

    /// The programs of the versions that must run.
    pub fn running_programs<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = NodeProgram<'a>> {
        self.named(desired).filter_map(|(server, _)| {
            server.rollout.current.as_ref().map(|version| version.node_program(&server.uid))
        })
    }

    /// The servers that have their names: another object may have the same one.
    fn named<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = (&'a ModelServerInstance, &'a WantedServer)> {
        desired.servers.iter().filter_map(|(key, wanted)| {
            let has_name = desired.server_named(&wanted.serving.name) == Some(key);
            self.instances.get(key).filter(|_| has_name).map(|server| (server, wanted))
        })
    }
}
