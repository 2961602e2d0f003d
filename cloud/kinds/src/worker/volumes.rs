//! Validates the volumes of a container, and converts them to the mounts of a container of an agent.
//! `kubernetes/pod_volumes` renders those of Pods.

use std::collections::{BTreeMap, BTreeSet};

use neptune_api::{
    EmptyDirSource, HostPathSource, HostPathType, KeyToPath, Volume, VolumeMedium, VolumeMount,
};
use neptune_wire::{ContainerMount, EmptyDirMount};

use crate::{
    finding::Finding,
    kubernetes::{container_inputs::ContainerInputs, quantities},
    reason::Reason,
};

/// Directories of a container that the kernel or Neptune provides.
const RESERVED: [&str; 5] = ["/proc", "/sys", "/dev", "/models", "/datasets"];

/// The one directory in `/dev` that may be mounted.
const SHARED_MEMORY: &str = "/dev/shm";

/// Files of a container that the engine provides, and their directory.
const OF_ENGINE: [&str; 4] = ["/etc", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];

/// Maximum number of volumes, and of mounts, of a worker.
const MAX_VOLUMES: usize = 32;

/// Maximum length of the name of a volume, in bytes.
const MAX_NAME: usize = 63;

/// Adds a finding for each invalid volume and mount. `field` has them; `scripts` is the directory of the
/// scripts that the container mounts, if it mounts any.
pub fn check(
    field: &str,
    inputs: ContainerInputs<'_>,
    scripts: Option<&str>,
    findings: &mut Vec<Finding>,
) {
    let ContainerInputs { volumes, volume_mounts: mounts, .. } = inputs;
    let mut problems = Vec::new();
    for (name, number) in [("volumes", volumes.len()), ("volumeMounts", mounts.len())] {
        if number > MAX_VOLUMES {
            problems
                .push(format!("{name} has {number} entries; at most {MAX_VOLUMES} are supported"));
        }
    }
    let mut names = BTreeSet::new();
    for volume in volumes {
        let problem = volume_problem(volume).or_else(|| {
            let is_new = names.insert(volume.name.as_str());
            (!is_new).then(|| "is there twice; remove one".to_owned())
        });
        problems.extend(problem.map(|it| format!("volumes: volume {:?} {it}", volume.name)));
    }
    for (index, mount) in mounts.iter().enumerate() {
        let problem = mount_path_problem(&mount.mount_path, scripts)
            .or_else(|| overlap(mount, &mounts[..index]))
            .or_else(|| {
                let is_known = volumes.iter().any(|volume| volume.name == mount.name);
                let name = &mount.name;
                (!is_known).then(|| format!("mounts volume {name:?}, which is not in volumes"))
            });
        let path = &mount.mount_path;
        problems.extend(problem.map(|it| format!("volumeMounts: mountPath {path:?} {it}")));
    }
    let finding = |problem| Finding::new(Reason::VolumeInvalid, format!("{field}.{problem}"));
    findings.extend(problems.into_iter().map(finding));
}

fn volume_problem(volume: &Volume) -> Option<String> {
    let Volume { name, empty_dir, host_path, persistent_volume_claim, secret, config_map } = volume;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(fits)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !is_label {
        return Some(format!(
            "must have a name of at most {MAX_NAME} lower-case letters, digits and '-'"
        ));
    }
    let sources = [
        empty_dir.is_some(),
        host_path.is_some(),
        persistent_volume_claim.is_some(),
        secret.is_some(),
        config_map.is_some(),
    ];
    if sources.into_iter().filter(|it| *it).count() != 1 {
        return Some(
            "must have exactly one of emptyDir, hostPath, persistentVolumeClaim, secret and configMap"
                .to_owned(),
        );
    }
    let size = empty_dir.as_ref().and_then(|it| it.size_limit.as_ref()).map(ToString::to_string);
    if let Some(size) = size.filter(|size| bytes(size).is_none()) {
        return Some(format!(
            "has sizeLimit {size:?}, which must be a Kubernetes quantity above 0, such as \"256Mi\""
        ));
    }
    let path = host_path.as_ref().map(|it| &it.path).filter(|path| !is_plain(path))?;
    Some(format!(
        "has hostPath {path:?}, which must be an absolute path without \".\", \"..\" and ':'"
    ))
}

/// The bytes of a size above 0.
fn bytes(size: &str) -> Option<u64> {
    quantities::parse(size, 1).filter(|bytes| *bytes > 0)
}

/// Whether a path is absolute, not the root, and written without dots, empty parts and colons.
fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains(':'))
    })
}

/// Whether a path is another one or in it.
pub fn is_in(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn mount_path_problem(path: &str, scripts: Option<&str>) -> Option<String> {
    if !is_plain(path) {
        return Some(
            "must be an absolute path other than \"/\", without \".\", \"..\" and ':'".to_owned(),
        );
    }
    let reserved = RESERVED.iter().find(|reserved| is_in(path, reserved));
    if let Some(reserved) = reserved.filter(|_| path != SHARED_MEMORY) {
        return Some(format!("is in {reserved}, which is reserved; mount it elsewhere"));
    }
    if OF_ENGINE.contains(&path) {
        return Some("has files of the container engine; mount it elsewhere".to_owned());
    }
    let scripts = scripts.map(|dir| dir.trim_end_matches('/')).filter(|dir| !dir.is_empty())?;
    (is_in(path, scripts) || is_in(scripts, path))
        .then(|| format!("overlaps scriptDir {scripts:?}; mount it elsewhere"))
}

/// The earlier mount in which this one is, or the other way round.
fn overlap(mount: &VolumeMount, earlier: &[VolumeMount]) -> Option<String> {
    let path = &mount.mount_path;
    let overlaps = |it: &&VolumeMount| is_in(path, &it.mount_path) || is_in(&it.mount_path, path);
    let other = &earlier.iter().find(overlaps)?.mount_path;
    Some(format!("overlaps the mountPath {other:?}; mount them beside each other"))
}

/// The mounts of a container of an agent. Adds a finding for each volume that only Pods have. The
/// volumes passed [`check`].
pub fn agent_mounts(
    field: &str,
    inputs: ContainerInputs<'_>,
    findings: &mut Vec<Finding>,
) -> Vec<ContainerMount> {
    let mut mounts = Vec::new();
    for volume in inputs.volumes {
        let source = match agent_source(volume) {
            Ok(source) => source,
            Err(problem) => {
                let message = format!("{field}.volumes: volume {:?} {problem}", volume.name);
                findings.push(Finding::new(Reason::VolumeInvalid, message));
                continue;
            }
        };
        let of_volume = inputs.volume_mounts.iter().filter(|mount| mount.name == volume.name);
        mounts.extend(of_volume.map(|mount| ContainerMount {
            name: volume.name.clone(),
            path: mount.mount_path.clone(),
            read_only: mount.read_only || source.read_only,
            ..source.clone()
        }));
    }
    mounts
}

/// The source of a volume at an agent, without its mount.
fn agent_source(volume: &Volume) -> Result<ContainerMount, String> {
    let Volume { empty_dir, host_path, persistent_volume_claim, secret, config_map, .. } = volume;
    if persistent_volume_claim.is_some() {
        return Err("is a persistentVolumeClaim, which only Pods have; use emptyDir or hostPath on the node of an agent".to_owned());
    }
    let empty_dir = empty_dir.as_ref().map(empty_dir_mount).transpose()?;
    let host_path = host_path.as_ref();
    if let Some(secret) = secret {
        let (secret, items) = (Some(secret.secret_name.clone()), files(&secret.items));
        return Ok(ContainerMount { secret, items, read_only: true, ..ContainerMount::default() });
    }
    if let Some(config) = config_map {
        let (config, items) = (Some(config.name.clone()), files(&config.items));
        return Ok(ContainerMount { config, items, read_only: true, ..ContainerMount::default() });
    }
    Ok(ContainerMount {
        empty_dir,
        host_path_type: host_path.and_then(|it| it.type_).map(host_path_type),
        host_path: host_path.map(|HostPathSource { path, .. }| path.clone()),
        ..ContainerMount::default()
    })
}

/// The keys of a Secret or `ConfigMap` by their file; `None`: each key is a file of its name.
fn files(items: &[KeyToPath]) -> Option<BTreeMap<String, String>> {
    let files = items.iter().map(|KeyToPath { key, path }| (path.clone(), key.clone()));
    (!items.is_empty()).then(|| files.collect())
}

fn empty_dir_mount(source: &EmptyDirSource) -> Result<EmptyDirMount, String> {
    let EmptyDirSource { medium, size_limit } = source;
    let size = size_limit.as_ref().and_then(|size| bytes(&size.to_string()));
    match (medium, size) {
        (None, None) => Ok(EmptyDirMount::default()),
        (Some(VolumeMedium::Memory), Some(bytes)) => Ok(EmptyDirMount { memory_bytes: Some(bytes) }),
        (Some(VolumeMedium::Memory), None) => Err(
            "has medium Memory and no sizeLimit; set sizeLimit to the size of the file system in memory"
                .to_owned(),
        ),
        (None, Some(_)) => Err(
            "has a sizeLimit, which nothing enforces on the node of an agent; remove it, or set medium to Memory"
                .to_owned(),
        ),
    }
}

fn host_path_type(type_: HostPathType) -> neptune_wire::HostPathType {
    match type_ {
        HostPathType::Directory => neptune_wire::HostPathType::Directory,
        HostPathType::File => neptune_wire::HostPathType::File,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::WorkerSpec;
    use serde_json::{Value, json};

    use super::*;

    fn spec(volumes: &Value, mounts: &Value) -> WorkerSpec {
        let spec =
            json!({"frameworkType": "container", "volumes": volumes, "volumeMounts": mounts});
        serde_json::from_value(spec).unwrap()
    }

    fn problems(volumes: &Value, mounts: &Value) -> Vec<String> {
        let mut findings = Vec::new();
        let spec = spec(volumes, mounts);
        check("spec", (&spec).into(), Some("/code/"), &mut findings);
        assert!(findings.iter().all(|finding| finding.reason == Reason::VolumeInvalid));
        findings.into_iter().map(|finding| finding.message).collect()
    }

    fn mount_problems(path: &str) -> Vec<String> {
        let volumes = json!([{"name": "a", "emptyDir": {}}]);
        problems(&volumes, &json!([{"name": "a", "mountPath": path}]))
    }

    #[test]
    fn mount_path_that_hides_other_files_is_refused() {
        for good in
            ["/data", "/dev/shm", "/tmp", "/etc/counter", "/var/lib/a.b", "/modelsx", "/cod"]
        {
            assert_eq!(mount_problems(good), [""; 0], "{good}");
        }
        for (bad, problem) in [
            ("", "must be an absolute path"),
            ("/", "must be an absolute path"),
            ("data", "must be an absolute path"),
            ("/data/", "must be an absolute path"),
            ("//data", "must be an absolute path"),
            ("/data/.", "must be an absolute path"),
            ("/data/../etc", "must be an absolute path"),
            ("/da:ta", "must be an absolute path"),
            ("/proc", "is in /proc"),
            ("/proc/1", "is in /proc"),
            ("/sys/fs", "is in /sys"),
            ("/dev", "is in /dev"),
            ("/dev/shm/a", "is in /dev"),
            ("/dev/shmx", "is in /dev"),
            ("/models", "is in /models"),
            ("/models/a", "is in /models"),
            ("/datasets/a", "is in /datasets"),
            ("/etc", "has files of the container engine"),
            ("/etc/hosts", "has files of the container engine"),
            ("/etc/resolv.conf", "has files of the container engine"),
            ("/code", "overlaps scriptDir"),
            ("/code/a", "overlaps scriptDir"),
        ] {
            let problems = mount_problems(bad);
            assert_eq!(problems.len(), 1, "{bad}: {problems:?}");
            let start = format!("spec.volumeMounts: mountPath {bad:?} {problem}");
            assert!(problems[0].starts_with(&start), "{}", problems[0]);
        }
    }

    #[test]
    fn invalid_volume_is_named_with_its_remedy() {
        let dir = json!({});
        for (volumes, problem) in [
            (json!([{"name": "A", "emptyDir": dir}]), "must have a name of at most 63"),
            (json!([{"name": "", "emptyDir": dir}]), "must have a name of at most 63"),
            (json!([{"name": "a"}]), "must have exactly one of emptyDir"),
            (
                json!([{"name": "a", "emptyDir": dir, "hostPath": {"path": "/a"}}]),
                "must have exactly one of emptyDir",
            ),
            (json!([{"name": "a", "emptyDir": {"sizeLimit": "1 GB"}}]), "has sizeLimit \"1 GB\""),
            (json!([{"name": "a", "hostPath": {"path": "/a/../b"}}]), "has hostPath \"/a/../b\""),
            (
                json!([{"name": "a", "emptyDir": dir}, {"name": "a", "emptyDir": dir}]),
                "is there twice",
            ),
        ] {
            let problems = problems(&volumes, &json!([]));
            assert_eq!(problems.len(), 1, "{volumes}: {problems:?}");
            assert!(problems[0].contains(problem), "{}", problems[0]);
        }
        let dirs = json!([{"name": "a", "emptyDir": dir}, {"name": "b", "emptyDir": dir}]);
        for (mounts, problem) in [
            (json!([{"name": "c", "mountPath": "/c"}]), "mounts volume \"c\", which is not in"),
            (
                json!([{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/a/b"}]),
                "overlaps the mountPath \"/a\"",
            ),
            (
                json!([{"name": "a", "mountPath": "/a/b"}, {"name": "b", "mountPath": "/a"}]),
                "overlaps the mountPath \"/a/b\"",
            ),
        ] {
            let problems = problems(&dirs, &mounts);
            assert_eq!(problems.len(), 1, "{mounts}: {problems:?}");
            assert!(problems[0].contains(problem), "{}", problems[0]);
        }
        let many: Vec<_> =
            (0..33).map(|it| json!({"name": format!("a{it}"), "emptyDir": {}})).collect();
        assert!(problems(&many.into(), &json!([]))[0].contains("volumes has 33 entries"));
    }

    #[test]
    fn volumes_become_the_mounts_of_an_agent() {
        let volumes = json!([
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "state", "emptyDir": {}},
            {"name": "archive", "hostPath": {"path": "/srv/cameras/hall", "type": "Directory"}},
            {"name": "unused", "emptyDir": {}},
        ]);
        let mounts = json!([
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "state", "mountPath": "/state"},
            {"name": "archive", "mountPath": "/archive", "readOnly": true},
            {"name": "state", "mountPath": "/cache"},
        ]);
        let mut findings = Vec::new();
        let spec = spec(&volumes, &mounts);
        let sent = agent_mounts("spec", (&spec).into(), &mut findings);
        assert_eq!(findings, []);
        let expected = json!([
            {"name": "shm", "path": "/dev/shm", "emptyDir": {"memoryBytes": 1_073_741_824}},
            {"name": "state", "path": "/state", "emptyDir": {}},
            {"name": "state", "path": "/cache", "emptyDir": {}},
            {"name": "archive", "path": "/archive", "hostPath": "/srv/cameras/hall",
             "hostPathType": "Directory", "readOnly": true},
        ]);
        assert_eq!(serde_json::to_value(sent).unwrap(), expected);
    }

    #[test]
    fn volume_that_only_pods_have_is_refused_at_an_agent() {
        for (source, problem) in [
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), "which only Pods have"),
            (json!({"emptyDir": {"sizeLimit": "1Gi"}}), "which nothing enforces"),
            (json!({"emptyDir": {"medium": "Memory"}}), "has medium Memory and no sizeLimit"),
        ] {
            let mut volume = source.clone();
            volume["name"] = "a".into();
            let mut findings = Vec::new();
            let spec = spec(&json!([volume]), &json!([{"name": "a", "mountPath": "/a"}]));
            assert_eq!(agent_mounts("spec", (&spec).into(), &mut findings), []);
            let [finding] = &findings[..] else { unreachable!("{source}: {findings:?}") };
            assert_eq!(finding.reason, Reason::VolumeInvalid);
            assert!(finding.message.contains(problem), "{}", finding.message);
        }
    }
}
