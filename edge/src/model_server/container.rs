//! Decides the container specs of one version of a model server and of its transformer. Pure.

use std::{borrow::Cow, collections::BTreeMap};

use neptune_wire::{ModelServer, ServedModel, Transformer};

use crate::domain::{
    artifact::LocalArtifact,
    container::{BindMount, ContainerNetwork, ContainerSpec, ScriptMount, TargetContainer},
    node_context::NodeContext,
    served_version::ServedVersion,
};

/// Seconds between SIGTERM and SIGKILL of a model server. Requests take less, and the next version
/// waits for the port.
const STOP_GRACE: u32 = 1;

/// Placeholder for the address on which a server listens, in its arguments.
const HOST: &str = "{host}";

/// The containers of one version.
#[derive(Debug, Clone)]
pub struct VersionContainers {
    pub server: TargetContainer,
    /// As if it were on the node's network; see [`beside`].
    pub transformer: Option<TargetContainer>,
}

/// The containers of this version. `model` is the version's model on the node, if it has one.
pub fn version_containers(
    version: &ServedVersion,
    uid: &str,
    model: Option<&LocalArtifact>,
    context: &NodeContext,
) -> VersionContainers {
    let transformer = version.serving.transformer.as_deref();
    VersionContainers {
        server: server_container(version, uid, model, context).into(),
        transformer: transformer
            .map(|it| transformer_container(it, version, (uid, model), context).into()),
    }
}

/// The container of a transformer beside the container of its server that has this ID. On a Docker
/// network it uses the network of the server's container, so that both have one loopback address;
/// another container of the server means another one of the transformer.
pub fn beside<'a>(
    transformer: &'a TargetContainer,
    server_id: &str,
    context: &NodeContext,
) -> Cow<'a, TargetContainer> {
    if context.network.is_none() {
        return Cow::Borrowed(transformer);
    }
    let network_of = Some(server_id.to_owned());
    Cow::Owned(ContainerSpec { network_of, ..transformer.spec.clone() }.into())
}

/// The container spec of this version. `model` is the version's model on the node, if it has one.
pub fn server_container(
    version: &ServedVersion,
    uid: &str,
    model: Option<&LocalArtifact>,
    context: &NodeContext,
) -> ContainerSpec {
    let ModelServer { image, command, args, env, resources, rights, .. } = &version.serving;
    let restrictions = context.defaults.restrict(rights, resources);
    let mut env = env.clone();
    env.insert("NODE_NAME".to_owned(), context.node.to_string());
    let mount = model_mount(version, uid, model, context);
    env.extend(mount.iter().map(model_url));
    let file = mount.as_ref().filter(|_| !version.watches()).map(|mount| mount.target.as_str());
    // On a Docker network the server's port is published on loopback only.
    let is_local = version.serving.transformer.is_some() && context.network.is_none();
    let host = if is_local { "127.0.0.1" } else { "0.0.0.0" };
    let filled = |arg: &String| version.fill_argument(arg, file).replace(HOST, host);
    ContainerSpec {
        uid: uid.to_owned(),
        image: image.clone(),
        command: command.clone(),
        args: args.iter().map(filled).collect(),
        env,
        scripts: None,
        model: mount,
        dataset: None,
        directories: Vec::new(),
        cpu_millis: restrictions.cpu_millis,
        memory_bytes: restrictions.memory_bytes,
        user: restrictions.user,
        writable_root: restrictions.writable_root,
        init: restrictions.init,
        stop_grace_seconds: Some(STOP_GRACE),
        start: None,
        dns: context.dns.clone(),
        hosts: BTreeMap::new(),
        network: network(version, context),
        network_of: None,
    }
}

/// The network of a server's container. The port of the endpoint is published there, also if the
/// transformer listens on it.
fn network(version: &ServedVersion, context: &NodeContext) -> Option<ContainerNetwork> {
    let serving = &version.serving;
    let network = context.container_network(Some(serving.port))?;
    let loopback_port = serving.transformer.as_ref().map(|transformer| transformer.server_port);
    Some(ContainerNetwork { grpc_port: serving.grpc_port, loopback_port, ..network })
}

fn transformer_container(
    transformer: &Transformer,
    version: &ServedVersion,
    (uid, model): (&str, Option<&LocalArtifact>),
    context: &NodeContext,
) -> ContainerSpec {
    let Transformer { image, command, args, env, scripts, resources, .. } = transformer;
    let restrictions = context.defaults.restrict(&version.serving.rights, resources);
    let model = model_mount(version, uid, model, context);
    let mut env = env.clone();
    env.insert("NODE_NAME".to_owned(), context.node.to_string());
    env.extend(model.iter().map(model_url));
    let scripts = scripts.as_ref();
    ContainerSpec {
        uid: uid.to_owned(),
        image: image.clone(),
        command: command.clone(),
        args: args.clone(),
        env,
        scripts: scripts
            .map(|it| ScriptMount { dir: it.dir.clone().into(), boot_file: it.boot_file.clone() }),
        model,
        dataset: None,
        directories: Vec::new(),
        cpu_millis: restrictions.cpu_millis,
        memory_bytes: restrictions.memory_bytes,
        user: restrictions.user,
        writable_root: restrictions.writable_root,
        init: restrictions.init,
        stop_grace_seconds: Some(STOP_GRACE),
        start: None,
        // In the network of another container, that container's name servers apply.
        dns: if context.network.is_none() { context.dns.clone() } else { Vec::new() },
        hosts: BTreeMap::new(),
        network: None,
        network_of: None,
    }
}

/// The mount of a version's model: its directory of versions if the server watches that, otherwise
/// the version.
fn model_mount(
    version: &ServedVersion,
    uid: &str,
    model: Option<&LocalArtifact>,
    context: &NodeContext,
) -> Option<BindMount> {
    let (served, model) = (version.serving.model.as_ref()?, model?);
    Some(if version.watches() {
        let source = version.versions_dir(uid, &context.data_dir);
        BindMount { source, target: served.directory.clone() }
    } else {
        BindMount { source: model.path.clone(), target: path_in_container(served, model) }
    })
}

fn model_url(mount: &BindMount) -> (String, String) {
    ("MODEL_URL".to_owned(), mount.target.clone())
}

/// The version's directory, or the file in it if the model is one plain file.
fn path_in_container(served: &ServedModel, model: &LocalArtifact) -> String {
    let ServedModel { directory, version, .. } = served;
    match &model.file {
        Some(file) => format!("{directory}/{version}/{file}"),
        None => format!("{directory}/{version}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use neptune_wire::Scripts;

    use super::*;
    use crate::fixtures::{node_context, served_version, transformed};

    fn local_artifact(file: Option<&str>) -> LocalArtifact {
        LocalArtifact { path: "/data/x".into(), file: file.map(str::to_owned) }
    }

    #[test]
    fn replaced_server_mounts_its_version_and_watching_server_the_directory() {
        let mut replaced = served_version("4", "replace");
        replaced.serving.args = vec!["--model=/models/m/{version}".into()];
        let spec = server_container(&replaced, "uid", Some(&local_artifact(None)), &node_context());
        assert_eq!(spec.args, ["--model=/models/m/4"]);
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4");
        assert_eq!(spec.model.unwrap().target, "/models/m/4");
        let spec = server_container(
            &replaced,
            "uid",
            Some(&local_artifact(Some("m.onnx"))),
            &node_context(),
        );
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4/m.onnx");
        assert_eq!(replaced.health_path().unwrap(), "/v/4");

        let of = |version| {
            let version = served_version(version, "watch");
            server_container(&version, "uid", Some(&local_artifact(None)), &node_context())
        };
        assert_eq!(of("4").hash(), of("3").hash(), "one container for all versions");
        let mount = of("4").model.unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/serving/uid/1"));
        assert_eq!(
            (mount.target.as_str(), of("4").env["MODEL_URL"].as_str()),
            ("/models/m", "/models/m")
        );
    }

    #[test]
    fn port_is_published_on_a_docker_network_only() {
        let version = served_version("4", "replace");
        let on = |network: Option<&str>| {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            server_container(&version, "uid", None, &context).network
        };
        assert_eq!(on(None), None);
        let network = on(Some("bridge")).unwrap();
        assert_eq!((&*network.name, network.port), ("bridge", Some(version.serving.port)));
        assert_eq!(network.grpc_port, None);
    }

    fn transformed_containers(reload: &str, network: Option<&str>) -> VersionContainers {
        let mut serving = transformed("4", reload);
        serving.args = vec!["--host={host}".into()];
        serving.transformer.as_mut().unwrap().scripts =
            Some(Scripts { dir: "/srv/t".into(), boot_file: "t.py".into() });
        let network = network.map(str::to_owned);
        let dns = vec!["192.0.2.53".parse().unwrap()];
        let context = NodeContext { dns, network, ..node_context() };
        let version = ServedVersion::new(&serving, 1);
        version_containers(&version, "uid", Some(&local_artifact(None)), &context)
    }

    #[test]
    fn transformer_has_the_model_and_the_server_its_own_port_on_loopback() {
        let containers = transformed_containers("watch", None);
        let server = containers.server.spec;
        assert_eq!((server.args, server.network), (vec!["--host=127.0.0.1".to_owned()], None));
        let transformer = containers.transformer.unwrap();
        let spec = &transformer.spec;
        assert_eq!((spec.image.as_str(), spec.env["PORT"].as_str()), ("t", "8501"));
        assert_eq!((spec.env["MODEL_URL"].as_str(), &spec.model), ("/models/m", &server.model));
        assert_eq!(spec.env["NODE_NAME"], "edge0");
        assert_eq!(spec.scripts.as_ref().unwrap().boot_file, "t.py");
        assert_eq!((spec.dns.len(), spec.network.is_none()), (1, true));
        let beside = beside(&transformer, "s1", &node_context());
        assert_eq!(beside.hash, transformer.hash, "another container of the server keeps it");
    }

    #[test]
    fn transformer_uses_the_docker_network_of_its_server() {
        let containers = transformed_containers("replace", Some("bridge"));
        let server = containers.server.spec;
        assert_eq!(server.args, ["--host=0.0.0.0"]);
        let network = server.network.unwrap();
        assert_eq!((network.port, network.loopback_port), (Some(8501), Some(13_501)));
        let transformer = containers.transformer.unwrap();
        let context = NodeContext { network: Some("bridge".into()), ..node_context() };
        let [first, second] =
            ["s1", "s2"].map(|id| beside(&transformer, id, &context).into_owned());
        assert_eq!(first.spec.network_of.as_deref(), Some("s1"));
        assert_eq!((first.spec.network.is_none(), first.spec.dns.len()), (true, 0));
        assert_ne!(first.hash, second.hash, "the network of a removed container is gone");
    }

    #[test]
    fn image_that_contains_its_model_has_no_mount() {
        let mut version = served_version("4", "replace");
        version.serving.model = None;
        let spec = server_container(&version, "uid", None, &node_context());
        assert_eq!((spec.model, spec.env.get("MODEL_URL")), (None, None));
        assert_eq!(version.version(), "i");
    }
}
