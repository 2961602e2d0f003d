//! Decides the request that creates a container, with the limits and rights of every worker and
//! model server. Pure.

use std::{collections::HashMap, path::Path};

use bollard::models;
use neptune_agent_core::domain::{
    broker_login::{BrokerLogin, PASSWORD_DIGEST},
    container::{ContainerSpec, MQTT_URL},
    device::device_labels,
    observed_container::{ContainerIdentity, VERSION},
    problem::Problem,
    volume::{VolumeMount, VolumeSource},
};
use neptune_wire::{WorkerReason, field_with_nul};

use crate::devices;

/// Maximum number of processes and threads in a container: enough for a numeric library on a big
/// machine, too few to starve the node.
const MAX_PIDS: i64 = 1024;

/// The one directory that is always writable.
const TMP: &str = "/tmp";

/// The shared memory of the processes of a container, whose size the engine sets.
const SHARED_MEMORY: &str = "/dev/shm";

/// The options of file systems in memory, which count towards the memory limit.
const TMPFS_OPTIONS: &str = "nosuid,nodev,mode=1777";

/// The variable with the path of the model.
const MODEL_URL: &str = "MODEL_URL";

/// The node's loopback address.
const LOOPBACK: &str = "127.0.0.1";

/// Refuses a spec with which no engine can start a program, and names the field: an engine names
/// neither.
///
/// # Errors
/// A text contains a NUL, or the devices do not fit together.
pub fn check(spec: &ContainerSpec) -> Result<(), Problem> {
    devices::check(spec)?;
    let Some(field) = field_with_nul(&spec.command, &spec.args, &spec.env) else { return Ok(()) };
    Err(Problem {
        reason: WorkerReason::ContainerRefused,
        message: format!(
            "{field} contains a NUL character, with which no program can be started; remove it from the spec"
        ),
    })
}

/// The body of the request that creates this container. `login`: of a worker at the embedded
/// broker; it replaces the URL of the spec.
pub fn create_request(
    identity: &ContainerIdentity,
    spec: &ContainerSpec,
    login: Option<&BrokerLogin>,
) -> models::ContainerCreateBody {
    body(spec, login, labels(identity, spec, login))
}

/// The body of the request that creates a training container. `max_file_bytes` limits each file
/// that it writes.
pub fn training_request(
    labels: HashMap<String, String>,
    spec: &ContainerSpec,
    max_file_bytes: u64,
) -> models::ContainerCreateBody {
    let limit = i64::try_from(max_file_bytes).unwrap_or(i64::MAX);
    let file_size = models::ResourcesUlimits {
        name: Some("fsize".to_owned()),
        soft: Some(limit),
        hard: Some(limit),
    };
    let mut body = body(spec, None, labels);
    if let Some(host) = &mut body.host_config {
        host.ulimits = Some(vec![file_size]);
    }
    body
}

fn body(
    spec: &ContainerSpec,
    login: Option<&BrokerLogin>,
    labels: HashMap<String, String>,
) -> models::ContainerCreateBody {
    let mut host = host_config(spec);
    devices::add(&mut host, &spec.units);
    models::ContainerCreateBody {
        image: Some(spec.image.clone()),
        entrypoint: some_unless_empty(spec.command.iter().cloned()),
        cmd: some_unless_empty(spec.args.iter().cloned()),
        working_dir: spec.working_dir.clone(),
        user: spec.user.map(|user| format!("{user}:{user}")),
        env: Some(env(spec, login)),
        labels: Some(labels.into_iter().chain(device_labels(&spec.units)).collect()),
        exposed_ports: some_unless_empty(published_ports(spec).map(|(port, _)| port)),
        stop_timeout: spec.stop_grace_seconds.map(i64::from),
        host_config: Some(host),
        ..Default::default()
    }
}

fn env(spec: &ContainerSpec, login: Option<&BrokerLogin>) -> Vec<String> {
    let devices = devices::variables(&spec.units);
    let own = spec.env.iter().filter(|(name, _)| !devices.contains_key(*name));
    let fixed = own.map(|(name, value)| match login {
        Some(login) if name == MQTT_URL => format!("{name}={}", login.mqtt_url),
        _ => format!("{name}={value}"),
    });
    let start = spec.start.iter().map(|start| format!("{MODEL_URL}={}", start.model_url));
    // Neither they nor `env` set a variable of the agent.
    let is_of_agent = |name: &String| {
        spec.env.contains_key(name)
            || devices.contains_key(name)
            || (spec.start.is_some() && name == MODEL_URL)
    };
    let secret = spec.secret_env.iter().flat_map(|secret| &*secret.variables);
    let secret = secret.filter(|(name, _)| !is_of_agent(name)).filter_map(|(name, value)| {
        // They are checked to be text.
        Some(format!("{name}={}", value.expose_text()?))
    });
    let devices = devices.iter().map(|(name, value)| format!("{name}={value}"));
    fixed.chain(secret).chain(start).chain(devices).collect()
}

fn labels(
    identity: &ContainerIdentity,
    spec: &ContainerSpec,
    login: Option<&BrokerLogin>,
) -> HashMap<String, String> {
    let start = spec.start.iter().map(|start| (VERSION.to_owned(), start.version.clone()));
    let login = login.map(|login| (PASSWORD_DIGEST.to_owned(), login.digest.to_string()));
    identity.labels().into_iter().chain(start).chain(login).collect()
}

fn some_unless_empty(list: impl Iterator<Item = String>) -> Option<Vec<String>> {
    Some(list.collect()).filter(|list: &Vec<String>| !list.is_empty())
}

fn network_mode(spec: &ContainerSpec) -> String {
    match &spec.network_of {
        Some(id) => format!("container:{id}"),
        None => spec.network.as_ref().map_or("host", |network| &network.name).to_owned(),
    }
}

/// The ports that the container serves, as the engine names them, and their places on every address
/// of the node or on loopback.
fn published_ports(
    spec: &ContainerSpec,
) -> impl Iterator<Item = (String, Option<Vec<models::PortBinding>>)> {
    let ports = spec.network.iter().flat_map(|network| {
        let public = [network.port, network.grpc_port].map(|port| (port, None));
        let loopback = network.loopback_ports.iter().map(|port| (Some(*port), Some(LOOPBACK)));
        public.into_iter().chain(loopback)
    });
    ports.filter_map(|(port, address)| Some((port?, address))).map(|(port, address)| {
        let host_ip = address.map(str::to_owned);
        let binding = models::PortBinding { host_ip, host_port: Some(port.to_string()) };
        (format!("{port}/tcp"), Some(vec![binding]))
    })
}

fn host_config(spec: &ContainerSpec) -> models::HostConfig {
    let limit = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let memory = spec.memory_bytes.map(limit);
    let bind = |source: &Path, target: String, writable: bool| models::Mount {
        typ: Some(models::MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target),
        read_only: Some(!writable),
        ..Default::default()
    };
    let read_only = |source: &Path, target: String| bind(source, target, false);
    let scripts = spec.scripts.iter().map(|scripts| {
        let source = scripts.source.as_ref().unwrap_or(&scripts.dir);
        read_only(source, scripts.dir.to_string_lossy().into_owned())
    });
    let model = spec.model.iter().map(|model| read_only(&model.source, model.target.clone()));
    let dataset = spec.dataset.iter().map(|data| read_only(&data.source, data.target.clone()));
    let directories =
        spec.directories.iter().map(|dir| bind(&dir.source, dir.target.clone(), dir.writable));
    let volumes = spec.volumes.iter().filter_map(volume_mount);
    let log_limits = [("max-size", "10m"), ("max-file", "2")];
    models::HostConfig {
        network_mode: Some(network_mode(spec)),
        port_bindings: Some(published_ports(spec).collect())
            .filter(|all: &HashMap<_, _>| !all.is_empty()),
        mounts: Some(
            scripts.chain(model).chain(dataset).chain(directories).chain(volumes).collect(),
        ),
        shm_size: shared_memory(spec).map(limit),
        dns: some_unless_empty(spec.dns.iter().map(ToString::to_string)),
        extra_hosts: some_unless_empty(
            spec.hosts.iter().map(|(name, address)| format!("{name}:{address}")),
        ),
        memory,
        // The limit of memory and swap together: equal to `memory` means no swap.
        memory_swap: memory,
        nano_cpus: spec.cpu_millis.map(|millis| limit(millis.saturating_mul(1_000_000))),
        pids_limit: Some(MAX_PIDS),
        init: Some(spec.init),
        readonly_rootfs: Some(!spec.writable_root),
        tmpfs: Some(file_systems_in_memory(spec)),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        restart_policy: Some(models::RestartPolicy {
            name: Some(models::RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(models::HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(
                log_limits.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ),
        }),
        ..Default::default()
    }
}

/// The mount of a volume of the engine or of a path of the node.
fn volume_mount(volume: &VolumeMount) -> Option<models::Mount> {
    let (typ, source) = match &volume.source {
        VolumeSource::Engine(name) => (models::MountType::VOLUME, name.clone()),
        VolumeSource::Host { path, real, .. } => {
            let path = real.as_ref().unwrap_or(path);
            (models::MountType::BIND, path.to_string_lossy().into_owned())
        }
        VolumeSource::Files(dir) => (models::MountType::BIND, dir.to_string_lossy().into_owned()),
        VolumeSource::Memory(_) | VolumeSource::Unknown => return None,
    };
    let options = || models::MountVolumeOptions {
        no_copy: Some(true),
        ..models::MountVolumeOptions::default()
    };
    Some(models::Mount {
        volume_options: (typ == models::MountType::VOLUME).then(options),
        typ: Some(typ),
        source: Some(source),
        target: Some(volume.target.clone()),
        read_only: Some(volume.read_only),
        ..Default::default()
    })
}

/// The size of the shared memory, if a volume sets it.
fn shared_memory(spec: &ContainerSpec) -> Option<u64> {
    let mut sizes = spec.volumes.iter().filter_map(|volume| match volume.source {
        VolumeSource::Memory(bytes) if volume.target == SHARED_MEMORY => Some(bytes),
        _ => None,
    });
    sizes.next()
}

/// The file systems in memory with their options, by path: those of the volumes, and `/tmp` unless a
/// volume is there.
fn file_systems_in_memory(spec: &ContainerSpec) -> HashMap<String, String> {
    let mut all = HashMap::new();
    if !spec.volumes.iter().any(|volume| volume.target == TMP) {
        all.insert(TMP.to_owned(), format!("rw,{TMPFS_OPTIONS},size=64m"));
    }
    for volume in &spec.volumes {
        if let VolumeSource::Memory(bytes) = volume.source
            && volume.target != SHARED_MEMORY
        {
            let access = if volume.read_only { "ro" } else { "rw" };
            let options = format!("{access},{TMPFS_OPTIONS},size={bytes}");
            all.insert(volume.target.clone(), options);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::sync::Arc;

    use neptune_agent_core::{
        domain::{
            broker_login::PasswordDigest,
            container::ContainerNetwork,
            node_context::{NodeContext, WorkerBroker},
            secret_env::SecretEnv,
        },
        fixtures::{
            container_identity, local_file, model_key, node_context, wanted_gateway, wanted_worker,
        },
        values::resolve::WorkerValues,
        worker::container::{WorkerInputs, resolve_worker},
    };
    use neptune_wire::SecretBytes;
    use serde_json::json;

    use super::*;

    #[test]
    fn spec_with_a_nul_is_refused_with_its_field() {
        let target = resolve_worker(&wanted_worker(), WorkerInputs::default(), &node_context());
        let mut spec = target.container.spec;
        assert_eq!(check(&spec), Ok(()));
        spec.env.insert("GREETING".to_owned(), "a\0b".to_owned());
        let problem = check(&spec).unwrap_err();
        assert_eq!(problem.reason, WorkerReason::ContainerRefused);
        assert!(problem.message.starts_with("env.GREETING contains a NUL"), "{}", problem.message);
    }

    #[test]
    fn values_of_secrets_are_variables_and_read_only_files() {
        let mut wanted = wanted_worker();
        wanted.worker.program.env.insert("URL".to_owned(), "of the spec".to_owned());
        wanted.worker.program.mounts =
            serde_json::from_value(json!([{"name": "s", "path": "/s", "secret": "camera"}]))
                .unwrap();
        let value = SecretBytes::new(b"rtsp://h".to_vec());
        let names = ["URL", "MQTT_URL", "MODEL_URL", "NODE_NAME"];
        let variables = names.map(|name| (name.to_owned(), value.clone())).into();
        let env = Some(SecretEnv { fingerprint: "f".to_owned(), variables: Arc::new(variables) });
        let values = WorkerValues { env, ..WorkerValues::default() };
        let model = local_file("/m/1");
        let (key, values) = (model_key(), Some(&values));
        let inputs =
            WorkerInputs { model: Some((&key, &model)), values, ..WorkerInputs::default() };
        let spec = resolve_worker(&wanted, inputs, &node_context()).container.spec;
        assert!(!format!("{spec:?}").contains("rtsp"));
        assert!(serde_json::to_string(&spec).unwrap().contains(r#""secret_env":"f""#));
        let request = create_request(&container_identity(), &spec, None);
        let env = request.env.unwrap();
        let with_value: Vec<_> = env.iter().filter(|it| it.contains("rtsp://h")).collect();
        assert_eq!(with_value, ["URL=rtsp://h"], "no variable of the agent is replaced");
        assert_eq!(env.iter().filter(|it| it.starts_with("URL=")).count(), 1);
        let mounts = request.host_config.unwrap().mounts.unwrap();
        let mount = mounts.iter().find(|mount| mount.target.as_deref() == Some("/s")).unwrap();
        assert_eq!(mount.source.as_deref(), Some("/run/neptune/edge0/uid/s-w-1/s"));
        assert_eq!((mount.typ, mount.read_only), (Some(models::MountType::BIND), Some(true)));
    }

    #[test]
    fn password_is_in_the_environment_and_only_its_digest_in_a_label() {
        let embedded = WorkerBroker::Embedded("127.0.0.1:1884".parse().unwrap());
        let context = NodeContext { broker: embedded, ..node_context() };
        let (wanted, model) = (wanted_worker(), local_file("/m/1"));
        let inputs =
            WorkerInputs { model: Some((&model_key(), &model)), ..WorkerInputs::default() };
        let target = resolve_worker(&wanted, inputs, &context).container;
        assert_eq!(target.spec.env[MQTT_URL], "mqtt://s-w-1@127.0.0.1:1884");
        let login = BrokerLogin {
            mqtt_url: "mqtt://s-w-1:secret@127.0.0.1:1884".into(),
            digest: PasswordDigest::compute("secret"),
        };
        let request = create_request(&container_identity(), &target.spec, Some(&login));
        let env = request.env.unwrap();
        let urls: Vec<_> = env.iter().filter(|entry| entry.starts_with("MQTT_URL=")).collect();
        assert_eq!(urls, ["MQTT_URL=mqtt://s-w-1:secret@127.0.0.1:1884"]);
        let labels = request.labels.unwrap();
        assert_eq!(labels[PASSWORD_DIGEST], PasswordDigest::compute("secret").to_string());
        assert!(labels.values().all(|label| !label.contains("secret")));
        // Another password is not another specification.
        assert_eq!(target.hash, target.spec.hash());
    }

    #[test]
    fn volumes_are_mounts_shared_memory_and_file_systems_in_memory() {
        let mut wanted = wanted_worker();
        wanted.worker.scripts = None;
        wanted.worker.program.mounts = serde_json::from_value(json!([
            {"name": "state", "path": "/state", "emptyDir": {}},
            {"name": "state", "path": "/copy", "emptyDir": {}, "readOnly": true},
            {"name": "archive", "path": "/archive", "hostPath": "/srv/a"},
            {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 134_217_728}},
            {"name": "tmp", "path": "/tmp", "emptyDir": {"memoryBytes": 1024}},
            {"name": "cache", "path": "/cache", "emptyDir": {"memoryBytes": 5}, "readOnly": true},
        ]))
        .unwrap();
        wanted.worker.program.working_dir = Some("/state".to_owned());
        wanted.worker.program.stop_grace_seconds = Some(30);
        let target = resolve_worker(&wanted, WorkerInputs::default(), &node_context());
        let request = create_request(&container_identity(), &target.container.spec, None);
        assert_eq!(
            (request.working_dir.as_deref(), request.stop_timeout),
            (Some("/state"), Some(30))
        );
        let host = request.host_config.unwrap();
        let mounts = serde_json::to_value(host.mounts.unwrap()).unwrap();
        let volume = "neptune-edge0-s-w-1-state";
        let options = json!({"NoCopy": true});
        let expected = json!([
            {"Type": "volume", "Source": volume, "Target": "/state", "ReadOnly": false,
             "VolumeOptions": options},
            {"Type": "volume", "Source": volume, "Target": "/copy", "ReadOnly": true,
             "VolumeOptions": options},
            {"Type": "bind", "Source": "/srv/a", "Target": "/archive", "ReadOnly": false},
        ]);
        assert_eq!(mounts, expected);
        assert_eq!(host.shm_size, Some(134_217_728));
        let tmpfs = host.tmpfs.unwrap();
        assert_eq!(tmpfs["/tmp"], "rw,nosuid,nodev,mode=1777,size=1024");
        assert_eq!(tmpfs["/cache"], "ro,nosuid,nodev,mode=1777,size=5");
        assert_eq!(tmpfs.len(), 2);
    }

    #[test]
    fn gateway_writes_only_its_state() {
        let inputs = WorkerInputs::default();
        let spec = resolve_worker(&wanted_gateway(), inputs, &node_context()).container.spec;
        let request = create_request(&container_identity(), &spec, None);
        let host = request.host_config.unwrap();
        let mounts = host.mounts.unwrap().into_iter();
        let mounts: Vec<_> = mounts.map(|it| (it.target.unwrap(), it.read_only.unwrap())).collect();
        let expected = [
            ("/etc/neptune-gateway", true),
            ("/var/lib/neptune-gateway", false),
            ("/etc/neptune-gateway-secrets", true),
        ];
        assert_eq!(mounts, expected.map(|(target, read_only)| (target.to_owned(), read_only)));
        assert_eq!((host.readonly_rootfs, host.pids_limit), (Some(true), Some(MAX_PIDS)));
        assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
        assert_eq!((host.network_mode.as_deref(), request.stop_timeout), (Some("host"), Some(30)));
        let visible = format!("{:?} {:?} {:?}", request.env, request.labels, request.cmd);
        assert!(!visible.contains("llm"), "{visible}");
    }

    #[test]
    fn port_is_published_on_a_docker_network_and_not_on_that_of_the_node() {
        let request = |network: Option<&str>, port| {
            let network = network.map(str::to_owned);
            let context = NodeContext { network, ..node_context() };
            let (mut wanted, model) = (wanted_worker(), local_file("/m/1"));
            wanted.worker.port = port;
            wanted.worker.hosts = [("c.svc".to_owned(), [10, 96, 0, 7].into())].into();
            let inputs =
                WorkerInputs { model: Some((&model_key(), &model)), ..WorkerInputs::default() };
            let spec = resolve_worker(&wanted, inputs, &context).container.spec;
            let request = create_request(&container_identity(), &spec, None);
            let host = request.host_config.unwrap();
            assert_eq!(host.extra_hosts.unwrap(), ["c.svc:10.96.0.7"]);
            (host.network_mode.unwrap(), request.exposed_ports, host.port_bindings)
        };
        assert_eq!(request(None, Some(5000)), ("host".to_owned(), None, None));
        assert_eq!(request(Some("workers"), None), ("workers".to_owned(), None, None));
        let (mode, exposed, bindings) = request(Some("bridge"), Some(5000));
        assert_eq!((mode.as_str(), exposed.unwrap()), ("bridge", vec!["5000/tcp".to_owned()]));
        let bindings = bindings.unwrap();
        let [binding] = &bindings["5000/tcp"].as_ref().unwrap()[..] else { panic!("{bindings:?}") };
        assert_eq!((&binding.host_ip, binding.host_port.as_deref()), (&None, Some("5000")));
    }

    #[test]
    fn server_behind_a_transformer_is_published_on_loopback_only() {
        let inputs = WorkerInputs::default();
        let mut spec = resolve_worker(&wanted_gateway(), inputs, &node_context()).container.spec;
        spec.network = Some(ContainerNetwork {
            name: "bridge".into(),
            port: Some(8501),
            grpc_port: None,
            loopback_ports: vec![13_501],
        });
        let request = create_request(&container_identity(), &spec, None);
        let bindings = request.host_config.unwrap().port_bindings.unwrap();
        let address = |port: &str| bindings[port].as_ref().unwrap()[0].host_ip.clone();
        assert_eq!((address("8501/tcp"), address("13501/tcp")), (None, Some("127.0.0.1".into())));

        let joined = ContainerSpec { network: None, network_of: Some("5e".into()), ..spec };
        let request = create_request(&container_identity(), &joined, None);
        let host = request.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("container:5e"));
        assert_eq!((request.exposed_ports, host.port_bindings), (None, None));
    }

    #[test]
    fn host_entries_and_name_servers_are_those_of_the_spec() {
        let edge_mesh = "169.254.96.16".parse().unwrap();
        let node = "192.0.2.53".parse().unwrap();
        let context = NodeContext { dns: vec![edge_mesh, node], ..node_context() };
        let (mut wanted, model) = (wanted_worker(), local_file("/m/1"));
        wanted.worker.hosts = [
            ("c.default.svc.cluster.local".to_owned(), [10, 96, 0, 7].into()),
            ("d.default.svc.cluster.local".to_owned(), "2001:db8::7".parse().unwrap()),
        ]
        .into();
        let inputs =
            WorkerInputs { model: Some((&model_key(), &model)), ..WorkerInputs::default() };
        let spec = resolve_worker(&wanted, inputs, &context).container.spec;
        let host = create_request(&container_identity(), &spec, None).host_config.unwrap();
        assert_eq!(
            host.extra_hosts.unwrap(),
            ["c.default.svc.cluster.local:10.96.0.7", "d.default.svc.cluster.local:2001:db8::7"]
        );
        assert_eq!(host.dns.unwrap(), ["169.254.96.16", "192.0.2.53"]);
    }

    #[test]
    fn worker_has_limits_only_if_they_are_set_and_no_namespace_or_device_of_the_node() {
        let (mut wanted, model) = (wanted_worker(), local_file("/m/1"));
        for (memory, cpu) in [(None, None), (Some(1 << 30), Some(1_500))] {
            wanted.worker.program.resources.memory_bytes = memory;
            wanted.worker.program.resources.cpu_millis = cpu;
            let inputs =
                WorkerInputs { model: Some((&model_key(), &model)), ..WorkerInputs::default() };
            let spec = resolve_worker(&wanted, inputs, &node_context()).container.spec;
            let host = create_request(&container_identity(), &spec, None).host_config.unwrap();
            assert_eq!(host.memory, memory.map(|_| 1_073_741_824));
            assert_eq!(host.memory_swap, host.memory, "no swap");
            assert_eq!(host.nano_cpus, cpu.map(|_| 1_500_000_000));
            assert_eq!((host.pid_mode, host.ipc_mode, host.uts_mode), (None, None, None));
            assert_eq!((host.devices, host.device_requests), (None, None));
            assert_eq!((host.device_cgroup_rules, host.privileged), (None, None));
        }
    }
}
