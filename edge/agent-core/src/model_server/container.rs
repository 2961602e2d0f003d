//! Decides the container specs of one version of a model server, of its transformer and of the
//! proxy in front of that.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

use neptune_wire::{ContainerProgram, ServedModel, Transformer, TransformerProxy};

use crate::{
    domain::{
        artifact::LocalArtifact,
        container::{
            BindMount, ContainerNetwork, ContainerSpec, DirectoryMount, ScriptMount,
            TargetContainer,
        },
        node_context::NodeContext,
        served_version::{ServedVersion, versions_dir},
        server_part::{ServerPart, Slot},
    },
    values::resolve::WorkerValues,
    volumes::mounts::volumes_of,
};

/// Seconds between SIGTERM and SIGKILL of a model server. Requests take less, and the next version
/// waits for the port.
const STOP_GRACE: u32 = 1;

/// Placeholder for the port on which a transformer listens, in its arguments.
const PORT: &str = "{port}";
/// The program of a proxy, in its image.
const PROXY_PROGRAM: &str = "neptune-gateway";
/// The directory with the address of the transformer, in the container of a proxy.
const PROXY_DIR: &str = "/etc/neptune-proxy";
/// Name of the file in the directory of a proxy that has the address of the transformer.
pub const PROXY_TARGET: &str = "target";

/// Placeholder for the address on which a server listens, in its arguments.
const HOST: &str = "{host}";

/// The containers of one version.
#[derive(Debug, Clone)]
pub struct VersionContainers {
    pub server: TargetContainer,
    /// The transformer's container as if it were on the node's network; see [`beside`]. `None` if
    /// the version has no transformer.
    pub transformer: Option<TargetContainer>,
    /// The slot of the transformer, which decides its name and its port.
    pub slot: Slot,
    /// The proxy in front of the transformer, also as if it were on the node's network.
    pub proxy: Option<TargetContainer>,
}

impl VersionContainers {
    /// The container of a part, if the version has it.
    pub fn part(&self, part: ServerPart) -> Option<&TargetContainer> {
        match part {
            ServerPart::Server => Some(&self.server),
            ServerPart::Transformer(slot) => {
                self.transformer.as_ref().filter(|_| slot == self.slot)
            }
            ServerPart::Proxy => self.proxy.as_ref(),
        }
    }

    /// Whether the transformers of both versions can run beside each other: before one container
    /// of the server, behind one proxy.
    pub fn can_coexist(&self, other: &Self) -> bool {
        self.slot != other.slot
            && self.server.hash == other.server.hash
            && self.proxy.as_ref().zip(other.proxy.as_ref()).is_some_and(|(a, b)| a.hash == b.hash)
    }
}

/// The inputs of a version that are on the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct VersionInputs<'a> {
    /// The version's model, if it has one.
    pub model: Option<&'a LocalArtifact>,
    /// What the server gets of its Secrets and `ConfigMap`s, if it has some.
    pub values: Option<&'a WorkerValues>,
}

/// The containers of this version.
pub fn version_containers(
    version: &ServedVersion,
    uid: &str,
    inputs: VersionInputs<'_>,
    context: &NodeContext,
) -> VersionContainers {
    let model = inputs.model;
    let transformer = version.serving.transformer.as_deref();
    let proxy = transformer.and_then(|transformer| transformer.proxy.as_ref());
    VersionContainers {
        server: server_container(version, uid, inputs, context).into(),
        transformer: transformer
            .map(|it| transformer_container(it, version, (uid, model), context).into()),
        slot: version.slot,
        proxy: proxy.map(|it| proxy_container(it, version, uid, context).into()),
    }
}

/// The container of a transformer or a proxy beside the container of its server that has this ID. On a Docker
/// network it uses the network of the server's container, so that both have one loopback address;
/// another container of the server means another one of the transformer.
pub fn beside<'a>(
    container: &'a TargetContainer,
    server_id: &str,
    context: &NodeContext,
) -> Cow<'a, TargetContainer> {
    if context.network.is_none() {
        return Cow::Borrowed(container);
    }
    let network_of = Some(server_id.to_owned());
    Cow::Owned(ContainerSpec { network_of, ..container.spec.clone() }.into())
}

/// The container spec of this version.
pub fn server_container(
    version: &ServedVersion,
    uid: &str,
    VersionInputs { model, values }: VersionInputs<'_>,
    context: &NodeContext,
) -> ContainerSpec {
    let mut program = version.serving.program.clone();
    let values = values.cloned().unwrap_or_default();
    values.replace_variables(&mut program.env);
    program.env.insert("NODE_NAME".to_owned(), context.node.to_string());
    let mount = model_mount(version, uid, model, context);
    program.env.extend(mount.iter().map(model_url));
    let file = mount.as_ref().filter(|_| !version.watches()).map(|mount| mount.target.as_str());
    // On a Docker network the server's port is published on loopback only.
    let is_local = version.serving.transformer.is_some() && context.network.is_none();
    let host = if is_local { "127.0.0.1" } else { "0.0.0.0" };
    for arg in &mut program.args {
        *arg = version.fill_argument(arg, file).replace(HOST, host);
    }
    ContainerSpec {
        model: mount,
        stop_grace_seconds: Some(STOP_GRACE),
        dns: context.dns.clone(),
        network: network(version, context),
        volumes: volumes_of(version.node_program(uid), context),
        secret_env: values.env,
        pull: values.pull,
        ..ContainerSpec::new(uid, program, &context.defaults)
    }
}

/// The network of a server's container. The port of the endpoint is published there, also if the
/// transformer or a proxy listens on it.
fn network(version: &ServedVersion, context: &NodeContext) -> Option<ContainerNetwork> {
    let serving = &version.serving;
    let network = context.container_network(Some(serving.port))?;
    let transformer = serving.transformer.as_ref();
    let behind_proxy = transformer.and_then(|it| it.proxy.as_ref()).map(|proxy| proxy.ports);
    let server_port = transformer.map(|transformer| transformer.server_port);
    let loopback_ports = server_port.into_iter().chain(behind_proxy.into_iter().flatten());
    let loopback_ports = loopback_ports.collect();
    Some(ContainerNetwork { grpc_port: serving.grpc_port, loopback_ports, ..network })
}

fn transformer_container(
    transformer: &Transformer,
    version: &ServedVersion,
    (uid, model): (&str, Option<&LocalArtifact>),
    context: &NodeContext,
) -> ContainerSpec {
    let rights = version.serving.program.rights.clone();
    let mut program = ContainerProgram { rights, ..transformer.program.clone() };
    let model = model_mount(version, uid, model, context);
    let port = version.listen_port().unwrap_or(version.serving.port).to_string();
    program.env.insert("NODE_NAME".to_owned(), context.node.to_string());
    program.env.extend(model.iter().map(model_url));
    if transformer.proxy.is_some() {
        program.env.extend(["PORT", "SERVING_PORT"].map(|name| (name.to_owned(), port.clone())));
    }
    for arg in &mut program.args {
        *arg = arg.replace(PORT, &port);
    }
    ContainerSpec {
        scripts: transformer.scripts.as_ref().map(ScriptMount::from),
        model,
        // Behind a proxy nothing waits for the port, and requests may take long.
        stop_grace_seconds: transformer.proxy.is_none().then_some(STOP_GRACE),
        // In the network of another container, that container's name servers apply.
        dns: if context.network.is_none() { context.dns.clone() } else { Vec::new() },
        ..ContainerSpec::new(uid, program, &context.defaults)
    }
}

fn proxy_container(
    proxy: &TransformerProxy,
    version: &ServedVersion,
    uid: &str,
    context: &NodeContext,
) -> ContainerSpec {
    let listen = format!("0.0.0.0:{}", version.serving.port);
    let file = format!("{PROXY_DIR}/{PROXY_TARGET}");
    let args = ["proxy", "--listen", &listen, "--target-file", &file].map(str::to_owned);
    let program = ContainerProgram {
        image: proxy.image.clone(),
        command: vec![PROXY_PROGRAM.to_owned()],
        args: args.into(),
        ..ContainerProgram::default()
    };
    ContainerSpec {
        directories: vec![DirectoryMount {
            source: proxy_dir(uid, &context.data_dir),
            target: PROXY_DIR.to_owned(),
            writable: false,
        }],
        writable_root: false,
        stop_grace_seconds: Some(STOP_GRACE),
        ..ContainerSpec::new(uid, program, &context.defaults)
    }
}

/// The directory on the node with the address to which an object's proxy passes requests.
pub fn proxy_dir(uid: &str, data_dir: &Path) -> PathBuf {
    versions_dir(uid, data_dir).join("proxy")
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
    use std::sync::Arc;

    use neptune_registry_config::RegistryConfig;
    use neptune_wire::{Scripts, SecretBytes};
    use serde_json::json;

    use super::*;
    use crate::{
        domain::{secret_env::SecretEnv, volume::VolumeSource},
        fixtures::{node_context, proxied, served_version, transformed},
    };

    fn local_artifact(file: Option<&str>) -> LocalArtifact {
        LocalArtifact { path: "/data/x".into(), file: file.map(str::to_owned) }
    }

    fn of_model(model: &LocalArtifact) -> VersionInputs<'_> {
        VersionInputs { model: Some(model), values: None }
    }

    #[test]
    fn replaced_server_mounts_its_version_and_watching_server_the_directory() {
        let mut replaced = served_version("4", "replace");
        replaced.serving.program.args = vec!["--model=/models/m/{version}".into()];
        let spec =
            server_container(&replaced, "uid", of_model(&local_artifact(None)), &node_context());
        assert_eq!(spec.args, ["--model=/models/m/4"]);
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4");
        assert_eq!(spec.model.unwrap().target, "/models/m/4");
        let spec = server_container(
            &replaced,
            "uid",
            of_model(&local_artifact(Some("m.onnx"))),
            &node_context(),
        );
        assert_eq!(spec.env["MODEL_URL"], "/models/m/4/m.onnx");
        assert_eq!(replaced.health_path().unwrap(), "/v/4");

        let container = |version| {
            let version = served_version(version, "watch");
            server_container(&version, "uid", of_model(&local_artifact(None)), &node_context())
        };
        assert_eq!(container("4").hash(), container("3").hash(), "one container for all versions");
        let mount = container("4").model.unwrap();
        assert_eq!(mount.source, Path::new("/var/lib/neptune/serving/uid/1"));
        assert_eq!(
            (mount.target.as_str(), container("4").env["MODEL_URL"].as_str()),
            ("/models/m", "/models/m")
        );
    }

    #[test]
    fn port_is_published_on_a_docker_network_only() {
        let mut version = served_version("4", "replace");
        let on = |version: &ServedVersion, network: Option<&str>| {
            let context = NodeContext { network: network.map(str::to_owned), ..node_context() };
            server_container(version, "uid", VersionInputs::default(), &context).network
        };
        assert_eq!(on(&version, None), None);
        let network = on(&version, Some("bridge")).unwrap();
        assert_eq!((&*network.name, network.port), ("bridge", Some(version.serving.port)));
        assert_eq!(network.grpc_port, None);
        version.serving.grpc_port = Some(9000);
        assert_eq!(on(&version, Some("bridge")).unwrap().grpc_port, Some(9000));
    }

    fn transformed_containers(reload: &str, network: Option<&str>) -> VersionContainers {
        let mut serving = transformed("4", reload);
        serving.program.args = vec!["--host={host}".into()];
        serving.transformer.as_mut().unwrap().scripts =
            Some(Scripts { dir: "/srv/t".into(), boot_file: "t.py".into() });
        let network = network.map(str::to_owned);
        let dns = vec!["192.0.2.53".parse().unwrap()];
        let context = NodeContext { dns, network, ..node_context() };
        let version = ServedVersion::new(&serving, 1);
        version_containers(&version, "uid", of_model(&local_artifact(None)), &context)
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
        assert_eq!((network.port, network.loopback_ports), (Some(8501), vec![13_501]));
        let transformer = containers.transformer.unwrap();
        let context = NodeContext { network: Some("bridge".into()), ..node_context() };
        let [first, second] =
            ["s1", "s2"].map(|id| beside(&transformer, id, &context).into_owned());
        assert_eq!(first.spec.network_of.as_deref(), Some("s1"));
        assert_eq!((first.spec.network.is_none(), first.spec.dns.len()), (true, 0));
        assert_ne!(first.hash, second.hash, "the network of a removed container is gone");
    }

    #[test]
    fn transformers_behind_a_proxy_coexist_before_one_server() {
        for network in [None, Some("bridge")] {
            let network = network.map(str::to_owned);
            let context = NodeContext { network, ..node_context() };
            let slot_containers = |image, version, slot| {
                let mut serving = proxied(image, version, "watch");
                serving.transformer.as_mut().unwrap().program.args =
                    vec!["--http_port={port}".into()];
                let version = ServedVersion::new(&serving, 1).in_slot(slot);
                version_containers(&version, "uid", of_model(&local_artifact(None)), &context)
            };
            let (first, second) =
                (slot_containers("t", "4", Slot::First), slot_containers("u", "4", Slot::Second));
            assert!(first.can_coexist(&second) && !first.can_coexist(&first));
            for (containers, port) in [(&first, "13502"), (&second, "13503")] {
                let spec = &containers.transformer.as_ref().unwrap().spec;
                assert_eq!(spec.args, [format!("--http_port={port}")]);
                assert_eq!((&*spec.env["PORT"], &*spec.env["SERVING_PORT"]), (port, port));
            }
            let published = first.server.spec.network.map(|network| network.loopback_ports);
            assert_eq!(published, context.network.as_ref().map(|_| vec![13_501, 13_502, 13_503]));
            let proxy = &first.proxy.as_ref().unwrap().spec;
            assert_eq!(proxy.args[1..3], ["--listen", "0.0.0.0:8501"]);
            let mount = &proxy.directories[0];
            assert_eq!(mount.source, Path::new("/var/lib/neptune/serving/uid/proxy"));
            assert!(!mount.writable && mount.target == PROXY_DIR);
        }
    }

    #[test]
    fn only_the_server_has_its_volumes_and_the_values_of_its_secrets() {
        let mut serving = transformed("4", "replace");
        let inputs = json!({
            "image": "i", "env": {"URL": "of the spec", "MODE": "fast"},
            "mounts": [
                {"name": "cache", "path": "/cache", "emptyDir": {}},
                {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 4096}},
                {"name": "weights", "path": "/weights", "hostPath": "/srv/w"},
                {"name": "key", "path": "/key", "secret": "s"},
            ],
            "secretEnv": [{"name": "URL", "secret": "s", "key": "url"}],
            "secrets": [{"name": "s", "version": "1", "sealKey": "k", "sealed": "c"}],
        });
        serving.program = serde_json::from_value(inputs).unwrap();
        let version = ServedVersion::new(&serving, 1);
        let secret = |value: &str| {
            let bytes = SecretBytes::new(value.as_bytes().to_vec());
            let variables = Arc::new([("URL".to_owned(), bytes)].into());
            let env = Some(SecretEnv { fingerprint: format!("of {value}"), variables });
            let logins = RegistryConfig::parse(br#"{"auths": {}}"#).unwrap();
            WorkerValues { env, pull: vec![logins].into(), ..WorkerValues::default() }
        };
        let containers = |version: &ServedVersion, values: &WorkerValues| {
            let model = local_artifact(None);
            let inputs = VersionInputs { model: Some(&model), values: Some(values) };
            version_containers(version, "uid", inputs, &node_context())
        };
        let first = containers(&version, &secret("1"));
        let spec = &first.server.spec;
        let names: Vec<&str> = spec.volumes.iter().map(|volume| &*volume.name).collect();
        assert_eq!(names, ["cache", "shm", "weights", "key"]);
        let engine = VolumeSource::Engine(format!("neptune-edge0-{}-cache", serving.name));
        assert_eq!(spec.volumes[0].source, engine);
        let files = format!("/run/neptune/edge0/uid/{}/key", serving.name);
        let files = VolumeSource::Files(files.into());
        assert_eq!((&spec.volumes[3].source, spec.volumes[3].read_only), (&files, true));
        assert_eq!(spec.env.get("URL"), None, "the value of the Secret wins");
        assert_eq!((&*spec.env["MODE"], spec.pull.len()), ("fast", 1));
        let transformer = &first.transformer.as_ref().unwrap().spec;
        assert_eq!((transformer.volumes.len(), &transformer.secret_env), (0, &None));

        let mut again = version.clone();
        again.serving.program.secrets[0].version = "2".to_owned();
        again.serving.program.secrets[0].sealed = "d".to_owned();
        assert_eq!(containers(&again, &secret("1")).server.hash, first.server.hash);
        assert_ne!(containers(&again, &secret("2")).server.hash, first.server.hash);
    }

    #[test]
    fn image_that_contains_its_model_has_no_mount() {
        let mut version = served_version("4", "replace");
        version.serving.model = None;
        let spec = server_container(&version, "uid", VersionInputs::default(), &node_context());
        assert_eq!((spec.model, spec.env.get("MODEL_URL")), (None, None));
        assert_eq!(version.version(), "i");
    }
}
