//! Decides what differs in the container of a gateway from that of another worker.

use std::path::Path;

use crate::{
    desired::WantedWorker,
    domain::{
        container::{ContainerSpec, DirectoryMount},
        node_context::NodeContext,
    },
    gateway::directories::{CAPTURE_DIR, CONFIG_DIR, SECRETS_DIR, STATE_DIR, gateway_dir},
};

/// The limit of memory of a gateway without one, if it has the default sizes: the bodies of all
/// requests, which it limits to 256 MiB, what is made of them, and answers.
const MEMORY: u64 = 1 << 30;
/// The size of a body up to which [`MEMORY`] is enough.
const USUAL_BODY: u64 = 64 * 1024 * 1024;
/// Seconds between SIGTERM and SIGKILL: the gateway takes up to 25 s for requests in flight.
const STOP_GRACE: u32 = 30;

/// The container of a gateway, from that of a worker with the same image and environment.
///
/// It uses the node's network, because the model server's port is one of the node. It runs as a
/// user that can read its files, and whose captured samples a training can read. `capture`: the
/// directory of the node for captured samples.
pub fn gateway_container(
    spec: ContainerSpec,
    wanted: &WantedWorker,
    capture: Option<&Path>,
    context: &NodeContext,
) -> ContainerSpec {
    let dir = gateway_dir(wanted, context);
    let mount = |source, target: &str, writable| DirectoryMount {
        source,
        target: target.to_owned(),
        writable,
    };
    ContainerSpec {
        network: None,
        user: Some(context.gateway_user),
        writable_root: false,
        stop_grace_seconds: Some(STOP_GRACE),
        memory_bytes: spec.memory_bytes.or_else(|| default_memory(wanted, context)),
        directories: [
            mount(dir.config(), CONFIG_DIR, false),
            mount(dir.state(), STATE_DIR, true),
            mount(dir.secrets(), SECRETS_DIR, false),
        ]
        .into_iter()
        .chain(capture.map(|source| mount(source.to_owned(), CAPTURE_DIR, true)))
        .collect(),
        ..spec
    }
}

/// The limit of memory, unless the service or the node sets one; 0 there means no limit.
fn default_memory(wanted: &WantedWorker, context: &NodeContext) -> Option<u64> {
    let set = wanted.worker.program.resources.memory_bytes.or(context.defaults.memory_bytes);
    if set.is_some() {
        return None;
    }
    let gateway = wanted.worker.gateway.as_ref();
    let body = gateway.and_then(|it| it.config.max_body_bytes()).unwrap_or_default();
    // The gateway keeps two of the largest bodies.
    Some(MEMORY.saturating_add(body.saturating_sub(USUAL_BODY).saturating_mul(4)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_gateway_config::Document;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        domain::container::{ContainerDefaults, TargetContainer},
        fixtures::{node_context, wanted_gateway},
        worker::container::{WorkerInputs, resolve_worker},
    };

    fn document(value: Value) -> Document {
        serde_json::from_value(value).unwrap()
    }

    fn container(change: impl Fn(&mut WantedWorker), context: &NodeContext) -> TargetContainer {
        let mut wanted = wanted_gateway();
        change(&mut wanted);
        resolve_worker(&wanted, WorkerInputs::default(), context).container
    }

    #[test]
    fn directory_for_captured_samples_is_mounted_writable() {
        let path = Path::new("/data/hard");
        let inputs = WorkerInputs { capture: Some(path), ..WorkerInputs::default() };
        let context = node_context();
        let gateway = resolve_worker(&wanted_gateway(), inputs, &context).container;
        let capture = gateway.spec.directories.last().unwrap();
        assert_eq!((&*capture.source, &*capture.target), (path, CAPTURE_DIR));
        assert!(capture.writable && gateway.hash != container(|_| (), &context).hash);
    }

    #[test]
    fn gateway_uses_network_of_node_and_its_own_user() {
        let defaults = ContainerDefaults {
            user: Some(1000),
            read_only_root: false,
            ..ContainerDefaults::default()
        };
        let network = Some("bridge".to_owned());
        let context = NodeContext { network, defaults, gateway_user: 998, ..node_context() };
        let spec =
            container(|wanted| wanted.worker.program.rights.run_as_user = Some(0), &context).spec;
        assert_eq!((spec.network, spec.user, spec.writable_root), (None, Some(998), false));
        assert_eq!(spec.stop_grace_seconds, Some(30));
        assert_eq!((spec.model, spec.env.get("MODEL_URL")), (None, None));
        let mounts: Vec<_> =
            spec.directories.iter().map(|it| (it.target.as_str(), it.writable)).collect();
        assert_eq!(mounts, [(CONFIG_DIR, false), (STATE_DIR, true), (SECRETS_DIR, false)]);
    }

    #[test]
    fn gateway_has_a_limit_of_memory_unless_one_is_set() {
        let context = node_context();
        let memory = |change: &dyn Fn(&mut WantedWorker), context: &NodeContext| {
            container(change, context).spec.memory_bytes
        };
        assert_eq!(memory(&|_| (), &context), Some(1 << 30));
        let large = |wanted: &mut WantedWorker| {
            let limits = json!({"limits": {"maxBodyBytes": USUAL_BODY + 100}});
            wanted.worker.gateway.as_mut().unwrap().config = document(limits);
        };
        assert_eq!(memory(&large, &context), Some((1 << 30) + 400));
        let set = |bytes| {
            move |wanted: &mut WantedWorker| {
                wanted.worker.program.resources.memory_bytes = Some(bytes);
            }
        };
        assert_eq!(memory(&set(7), &context), Some(7));
        assert_eq!(memory(&set(0), &context), None, "zero means no limit");
        let defaults = ContainerDefaults { memory_bytes: Some(9), ..context.defaults.clone() };
        assert_eq!(memory(&|_| (), &NodeContext { defaults, ..context }), Some(9));
    }

    #[test]
    fn only_image_and_command_line_replace_the_container() {
        let hash = |change: &dyn Fn(&mut WantedWorker)| container(change, &node_context()).hash;
        let before = hash(&|_| ());
        for change in [
            (|spec| spec.config = document(json!({"hardExample": {"threshold": 0.7}})))
                as fn(&mut neptune_wire::GatewaySpec),
            |spec| spec.token_file = None,
            |spec| spec.ca_file = Some("ca".into()),
            |spec| spec.server = "other".parse().unwrap(),
        ] {
            let changed = hash(&|wanted| change(wanted.worker.gateway.as_mut().unwrap()));
            assert_eq!(changed, before);
        }
        assert_ne!(hash(&|wanted| wanted.worker.program.image.push('2')), before);
        assert_ne!(hash(&|wanted| wanted.worker.program.args.push("-v".into())), before);
        assert_ne!(hash(&|wanted| wanted.uid.push('2')), before);
    }
}
