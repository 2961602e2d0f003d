//! The part of a create request that gives units of devices to a container. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bollard::models::{DeviceMapping, DeviceRequest, HostConfig};
use neptune_agent_core::domain::{
    container::ContainerSpec,
    device::{DevicePart, DeviceUnit, variable_name},
    problem::Problem,
};
use neptune_wire::WorkerReason;

/// The variable with which a runtime for GPUs is asked for some of them.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Refuses units that one container cannot have together.
///
/// # Errors
/// A requested device is not among them, two have one path in the container, or two runtimes are
/// needed.
pub fn check(spec: &ContainerSpec) -> Result<(), Problem> {
    let problem =
        |message: String| Err(Problem { reason: WorkerReason::ContainerRefused, message });
    let number =
        |resource: &String| spec.units.iter().filter(|unit| unit.resource == *resource).count();
    let has_all =
        |(resource, wanted): (&String, &u32)| u32::try_from(number(resource)) == Ok(*wanted);
    if let Some((resource, wanted)) = spec.devices.iter().find(|it| !has_all(*it)) {
        return problem(format!(
            "{wanted} {resource} are requested, and this kind of container gets no devices; remove them from resources.limits"
        ));
    }
    let mut targets = BTreeSet::new();
    let twice = parts(&spec.units).find_map(|part| match part {
        DevicePart::Node { target, .. } if !targets.insert(target) => Some(target),
        _ => None,
    });
    if let Some(target) = twice {
        return problem(format!(
            "two devices of the container have the path {target}; give them different paths in --allow-device"
        ));
    }
    if runtimes(&spec.units).len() > 1 {
        return problem(
            "the devices of the container need two runtimes of the engine; request devices of one"
                .to_owned(),
        );
    }
    Ok(())
}

/// Adds the devices to a request. Rights are not added: the engine allows the devices alone.
pub fn add(host: &mut HostConfig, units: &[DeviceUnit]) {
    if units.is_empty() {
        return;
    }
    let nodes = parts(units).filter_map(|part| match part {
        DevicePart::Node { path, target, .. } => Some(DeviceMapping {
            path_on_host: Some(path.clone()),
            path_in_container: Some(target.clone()),
            // Not `m`: a worker makes no device nodes. All three are set, because Podman joins them
            // with colons.
            cgroup_permissions: Some("rw".to_owned()),
        }),
        _ => None,
    });
    host.devices = Some(nodes.collect::<Vec<_>>()).filter(|nodes| !nodes.is_empty());
    let names = |name: fn(&DevicePart) -> Option<&String>| -> Vec<String> {
        parts(units).filter_map(name).cloned().collect()
    };
    let cdi = names(|part| if let DevicePart::Cdi(name) = part { Some(name) } else { None });
    let nvidia = names(|part| if let DevicePart::Nvidia(id) = part { Some(id) } else { None });
    let request = |driver: &str, ids: Vec<String>, capabilities| {
        (!ids.is_empty()).then(|| DeviceRequest {
            driver: Some(driver.to_owned()),
            device_ids: Some(ids),
            capabilities,
            ..DeviceRequest::default()
        })
    };
    let gpu = Some(vec![vec!["gpu".to_owned()]]);
    let requests = [request("cdi", cdi, None), request("nvidia", nvidia, gpu)];
    let requests: Vec<DeviceRequest> = requests.into_iter().flatten().collect();
    host.device_requests = Some(requests).filter(|requests| !requests.is_empty());
    host.runtime = runtimes(units).into_iter().next().map(str::to_owned);
    // A program without capabilities gets only what owner, group and mode allow. Root's group would
    // allow more than the device.
    let groups: BTreeSet<u32> = parts(units)
        .filter_map(|part| match part {
            DevicePart::Node { group, .. } => group.filter(|group| *group != 0),
            _ => None,
        })
        .collect();
    host.group_add =
        Some(groups.iter().map(u32::to_string).collect::<Vec<_>>()).filter(|it| !it.is_empty());
}

/// The variables that name the devices. Nothing else may set them.
pub fn variables(units: &[DeviceUnit]) -> BTreeMap<String, String> {
    let mut values: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for unit in units {
        let value = values.entry(variable_name(&unit.resource)).or_default();
        value.extend(unit.parts.iter().map(DevicePart::variable_value));
    }
    let gpus = parts(units).filter_map(|part| match part {
        DevicePart::Runtime { id, .. } => Some(id.as_deref().unwrap_or("all")),
        _ => None,
    });
    for gpu in gpus {
        values.entry(VISIBLE_DEVICES.to_owned()).or_default().push(gpu);
    }
    values.into_iter().map(|(name, value)| (name, value.join(","))).collect()
}

fn runtimes(units: &[DeviceUnit]) -> BTreeSet<&str> {
    let names = parts(units).filter_map(|part| match part {
        DevicePart::Runtime { name, .. } => Some(name.as_str()),
        _ => None,
    });
    names.collect()
}

fn parts(units: &[DeviceUnit]) -> impl Iterator<Item = &DevicePart> {
    units.iter().flat_map(|unit| &unit.parts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::{
        domain::device::{DEVICE_IDS, DEVICES},
        fixtures::{container_identity, node_context, wanted_worker},
        worker::container::{WorkerInputs, resolve_worker},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::create::{create_request, training_request};

    fn unit(resource: &str, parts: &[DevicePart]) -> DeviceUnit {
        DeviceUnit {
            name: format!("{resource}=x"),
            resource: resource.to_owned(),
            identity: "1/2".to_owned(),
            parts: parts.to_vec(),
        }
    }

    fn node(path: &str, target: &str, group: Option<u32>) -> DevicePart {
        DevicePart::Node { path: path.to_owned(), target: target.to_owned(), group }
    }

    fn spec(units: &[DeviceUnit]) -> ContainerSpec {
        let mut spec = resolve_worker(&wanted_worker(), WorkerInputs::default(), &node_context())
            .container
            .spec;
        spec.env.insert("DEVICE_A_B_C".to_owned(), "/dev/of-the-user".to_owned());
        spec.env.insert(VISIBLE_DEVICES.to_owned(), "all".to_owned());
        spec.units = units.to_vec();
        spec
    }

    /// What the units add to or change in the host configuration, and in the environment.
    fn changes(units: &[DeviceUnit]) -> (Value, Vec<String>) {
        let request =
            |units: &[DeviceUnit]| create_request(&container_identity(), &spec(units), None);
        let (with, without) = (request(units), request(&[]));
        let host = |it: &bollard::models::ContainerCreateBody| {
            serde_json::to_value(&it.host_config).unwrap()
        };
        let (before, after) = (host(&without), host(&with));
        let changed = after.as_object().unwrap().iter();
        let changed = changed.filter(|(name, value)| before.get(*name) != Some(value));
        let changed: Value = changed.map(|(name, value)| (name.clone(), value.clone())).collect();
        let env = with.env.unwrap().into_iter();
        let env = env.filter(|it| it.starts_with("DEVICE_") || it.starts_with("NVIDIA_"));
        let mut env: Vec<String> = env.collect();
        env.sort();
        (changed, env)
    }

    #[test]
    fn request_of_each_source_has_exactly_its_devices() {
        let user =
            ["DEVICE_A_B_C=/dev/of-the-user", "NVIDIA_VISIBLE_DEVICES=all"].map(str::to_owned);
        assert_eq!(changes(&[]), (json!({}), user.to_vec()));

        let open = changes(&[unit("a.b/c", &[node("/dev/video2", "/dev/video0", None)])]);
        let devices = json!([{
            "PathOnHost": "/dev/video2", "PathInContainer": "/dev/video0", "CgroupPermissions": "rw",
        }]);
        assert_eq!(open.0, json!({"Devices": devices}));
        assert_eq!(open.1, ["DEVICE_A_B_C=/dev/video0", "NVIDIA_VISIBLE_DEVICES=all"]);

        let grouped = changes(&[
            unit(
                "a.b/c",
                &[node("/dev/kfd", "/dev/kfd", Some(44)), node("/dev/r", "/dev/r", Some(0))],
            ),
            unit("a.b/c", &[node("/dev/s", "/dev/s", Some(7))]),
        ]);
        assert_eq!(grouped.0["GroupAdd"], json!(["7", "44"]), "never the group of root");
        assert_eq!(grouped.1[0], "DEVICE_A_B_C=/dev/kfd,/dev/r,/dev/s");

        let cdi = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"].map(|it| DevicePart::Cdi(it.to_owned()));
        let cdi = changes(&[unit("nvidia.com/gpu", &cdi)]);
        let ids = json!(["nvidia.com/gpu=0", "nvidia.com/gpu=1"]);
        assert_eq!(cdi.0, json!({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ids}]}));
        assert!(
            cdi.1.contains(&"DEVICE_NVIDIA_COM_GPU=nvidia.com/gpu=0,nvidia.com/gpu=1".to_owned())
        );

        let driver = changes(&[unit("nvidia.com/gpu", &[DevicePart::Nvidia("0:1".to_owned())])]);
        let request = json!({"Driver": "nvidia", "DeviceIDs": ["0:1"], "Capabilities": [["gpu"]]});
        assert_eq!(driver.0, json!({"DeviceRequests": [request]}));

        let runtime = |id: Option<&str>| {
            let id = id.map(str::to_owned);
            changes(&[unit("a.b/c", &[DevicePart::Runtime { name: "nvidia".to_owned(), id }])])
        };
        let jetson = runtime(Some("0"));
        assert_eq!(jetson.0, json!({"Runtime": "nvidia"}));
        assert_eq!(jetson.1, ["DEVICE_A_B_C=0", "NVIDIA_VISIBLE_DEVICES=0"]);
        assert_eq!(runtime(None).1, ["DEVICE_A_B_C=nvidia", "NVIDIA_VISIBLE_DEVICES=all"]);
    }

    #[test]
    fn no_source_adds_rights_and_the_labels_name_the_units() {
        let all = [
            unit(
                "a.b/c",
                &[node("/dev/x", "/dev/x", Some(44)), DevicePart::Cdi("v/c=0".to_owned())],
            ),
            unit("d.e/f", &[DevicePart::Nvidia("0".to_owned())]),
        ];
        let worker = create_request(&container_identity(), &spec(&all), None);
        let task = training_request([("task".to_owned(), "1".to_owned())].into(), &spec(&all), 1);
        for request in [worker, task] {
            let host = request.host_config.unwrap();
            assert_eq!(
                (host.privileged, host.cap_add, host.device_cgroup_rules),
                (None, None, None)
            );
            assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
            let labels = request.labels.unwrap();
            assert_eq!(labels[DEVICES], r#"["a.b/c=x","d.e/f=x"]"#);
            assert_eq!(labels[DEVICE_IDS], r#"["1/2","1/2"]"#);
        }
        let without = create_request(&container_identity(), &spec(&[]), None).labels.unwrap();
        assert!(!without.contains_key(DEVICES) && !without.contains_key(DEVICE_IDS));
    }

    #[test]
    fn units_that_do_not_fit_together_are_refused() {
        let video = |path: &str| unit("a.b/c", &[node(path, "/dev/video0", None)]);
        let message = |units: &[DeviceUnit]| check(&spec(units)).unwrap_err().message;
        assert!(message(&[video("/dev/x"), video("/dev/y")]).contains("path /dev/video0;"));
        let runtime =
            |name: &str| unit("a.b/c", &[DevicePart::Runtime { name: name.to_owned(), id: None }]);
        assert!(message(&[runtime("a"), runtime("b")]).contains("two runtimes"));
        assert_eq!(check(&spec(&[video("/dev/x"), runtime("a"), runtime("a")])), Ok(()));
    }
}
