//! The rights of the containers of a Pod: those of the Pod Security Standard `restricted`, unless
//! the resource loosens them.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, PodSecurityContext, PodSpec,
    SeccompProfile, SecurityContext as ContainerSecurityContext, Volume, VolumeMount,
};
use neptune_api::{SeccompType, SecurityContext};
use neptune_wire::ContainerRights;

use crate::{finding::Finding, kubernetes::container::variable, reason::Reason};

/// The user and group without `runAsUser`: that of distroless images.
const DEFAULT_USER: i64 = 65_532;

/// The directory that is writable in every container.
const TMP: &str = "/tmp";

/// The finding if the fields contradict each other.
pub fn check(field: &str, context: Option<&SecurityContext>) -> Option<Finding> {
    let context = context?;
    let message = if context.run_as_user == Some(0) && context.run_as_non_root != Some(false) {
        format!("{field}.runAsUser 0 is root; set another user, or also set runAsNonRoot to false")
    } else if context.run_as_user.is_some_and(|user| u32::try_from(user).is_err()) {
        format!("{field}.runAsUser must be a user ID, 0 to 4294967294")
    } else if let Some(name) =
        context.capabilities.iter().flat_map(|all| &all.add).find(|name| !is_capability(name))
    {
        format!(
            "{field}.capabilities.add: {name:?} must be a capability in capital letters without CAP_, such as NET_BIND_SERVICE"
        )
    } else {
        return None;
    };
    Some(Finding::new(Reason::SecurityContextInvalid, message))
}

fn is_capability(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && !name.starts_with("CAP_")
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Sets the rights of the Pod and of each of its containers, and mounts a writable `/tmp` in each.
pub fn restrict(pod: &mut PodSpec, context: Option<&SecurityContext>) {
    let context = context.cloned().unwrap_or_default();
    let user = user(&context);
    pod.security_context = Some(PodSecurityContext {
        run_as_non_root: (context.run_as_non_root != Some(false)).then_some(true),
        run_as_user: user,
        run_as_group: user,
        // Volumes that the init container fills are readable by the container that uses them.
        fs_group: Some(user.unwrap_or(DEFAULT_USER)),
        seccomp_profile: Some(profile(
            context.seccomp_profile.as_ref().map(|profile| profile.type_).unwrap_or_default(),
        )),
        ..PodSecurityContext::default()
    });
    for container in &mut pod.containers {
        container.security_context = Some(rights(&context));
        mount_tmp(container);
        if context.run_as_user.is_none() && user.is_some() {
            set_home(container);
        }
    }
    for container in pod.init_containers.iter_mut().flatten() {
        container.security_context = Some(ContainerSecurityContext {
            run_as_non_root: (user != Some(0)).then_some(true),
            run_as_user: Some(user.unwrap_or(DEFAULT_USER)),
            seccomp_profile: Some(profile(SeccompType::RuntimeDefault)),
            ..rights(&SecurityContext::default())
        });
        mount_tmp(container);
    }
    pod.volumes.get_or_insert_default().push(Volume {
        name: "tmp".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    });
}

/// The rights of the container of an agent. Agents never add capabilities or privileges.
pub fn container_rights(context: Option<&SecurityContext>) -> ContainerRights {
    ContainerRights {
        run_as_user: context.and_then(|context| u32::try_from(context.run_as_user?).ok()),
        read_only_root: context.and_then(|context| context.read_only_root_filesystem),
    }
}

/// The user of the processes; `None` for the user of the image.
fn user(context: &SecurityContext) -> Option<i64> {
    let by_default = (context.run_as_non_root != Some(false)).then_some(DEFAULT_USER);
    context.run_as_user.or(by_default)
}

fn rights(context: &SecurityContext) -> ContainerSecurityContext {
    let kept = context.capabilities.as_ref().map(|capabilities| capabilities.add.clone());
    ContainerSecurityContext {
        allow_privilege_escalation: Some(context.allow_privilege_escalation.unwrap_or(false)),
        read_only_root_filesystem: Some(context.read_only_root_filesystem.unwrap_or(true)),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: kept.filter(|kept| !kept.is_empty()),
        }),
        ..ContainerSecurityContext::default()
    }
}

fn profile(type_: SeccompType) -> SeccompProfile {
    let type_ = match type_ {
        SeccompType::RuntimeDefault => "RuntimeDefault",
        SeccompType::Unconfined => "Unconfined",
    };
    SeccompProfile { type_: type_.to_owned(), localhost_profile: None }
}

/// Mounts `/tmp`, unless the container has a volume there.
fn mount_tmp(container: &mut Container) {
    let mounts = container.volume_mounts.get_or_insert_default();
    if mounts.iter().any(|mount| mount.mount_path == TMP) {
        return;
    }
    mounts.push(VolumeMount {
        name: "tmp".to_owned(),
        mount_path: TMP.to_owned(),
        ..VolumeMount::default()
    });
}

/// The default user has no home directory in the image. Libraries store their caches there.
fn set_home(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if !env.iter().any(|variable: &EnvVar| variable.name == "HOME") {
        env.push(variable("HOME", TMP));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn restricted(context: &Value) -> Value {
        let container = |name: &str| Container { name: name.to_owned(), ..Container::default() };
        let mut pod = PodSpec {
            containers: vec![container("worker")],
            init_containers: Some(vec![container("fetch-model")]),
            ..PodSpec::default()
        };
        let context: Option<SecurityContext> = serde_json::from_value(context.clone()).unwrap();
        restrict(&mut pod, context.as_ref());
        serde_json::to_value(pod).unwrap()
    }

    #[test]
    fn pod_without_context_meets_the_restricted_standard() {
        let pod = restricted(&Value::Null);
        assert_eq!(
            pod["securityContext"],
            json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}})
        );
        for container in [&pod["containers"][0], &pod["initContainers"][0]] {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false);
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
            assert_eq!(context["readOnlyRootFilesystem"], true);
            assert_eq!(container["volumeMounts"], json!([{"name": "tmp", "mountPath": "/tmp"}]));
        }
        assert_eq!(pod["volumes"], json!([{"name": "tmp", "emptyDir": {}}]));
        assert_eq!(pod["containers"][0]["env"], json!([{"name": "HOME", "value": "/tmp"}]));
    }

    #[test]
    fn each_field_loosens_one_right_of_the_worker_only() {
        let user = restricted(&json!({"runAsUser": 1000}));
        assert_eq!(user["securityContext"]["runAsUser"], 1000);
        assert_eq!(user["securityContext"]["fsGroup"], 1000);
        assert!(user["containers"][0]["env"].is_null());
        let of_image = restricted(&json!({"runAsNonRoot": false}));
        let context = &of_image["securityContext"];
        assert!(context["runAsNonRoot"].is_null() && context["runAsUser"].is_null());
        let fetch = &of_image["initContainers"][0]["securityContext"];
        assert_eq!((&fetch["runAsNonRoot"], &fetch["runAsUser"]), (&json!(true), &json!(65532)));
        for (field, value, path) in [
            ("readOnlyRootFilesystem", json!(false), "readOnlyRootFilesystem"),
            ("allowPrivilegeEscalation", json!(true), "allowPrivilegeEscalation"),
        ] {
            let pod = restricted(&json!({ field: value }));
            assert_eq!(pod["containers"][0]["securityContext"][path], value);
            assert_ne!(pod["initContainers"][0]["securityContext"][path], value);
        }
        let pod = restricted(&json!({"capabilities": {"add": ["SYS_NICE"]}}));
        assert_eq!(
            pod["containers"][0]["securityContext"]["capabilities"],
            json!({"drop": ["ALL"], "add": ["SYS_NICE"]})
        );
        let pod = restricted(&json!({"seccompProfile": {"type": "Unconfined"}}));
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "Unconfined");
        let fetch = &pod["initContainers"][0]["securityContext"];
        assert_eq!(fetch["seccompProfile"]["type"], "RuntimeDefault");
    }

    #[test]
    fn agent_gets_user_and_root_file_system_only() {
        let context = json!({"runAsUser": 1000, "readOnlyRootFilesystem": false,
            "capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": true});
        let context: SecurityContext = serde_json::from_value(context).unwrap();
        let rights = container_rights(Some(&context));
        assert_eq!(
            serde_json::to_value(rights).unwrap(),
            json!({"runAsUser": 1000, "readOnlyRoot": false})
        );
        assert!(container_rights(None).is_default());
    }

    #[test]
    fn contradictory_context_is_a_finding() {
        let message = |context: Value| {
            let context: SecurityContext = serde_json::from_value(context).unwrap();
            check("spec.securityContext", Some(&context)).map(|finding| finding.message)
        };
        assert_eq!(message(json!({})), None);
        assert_eq!(message(json!({"runAsUser": 0, "runAsNonRoot": false})), None);
        assert_eq!(message(json!({"capabilities": {"add": ["NET_BIND_SERVICE"]}})), None);
        for (context, text) in [
            (json!({"runAsUser": 0}), "spec.securityContext.runAsUser 0 is root"),
            (json!({"runAsUser": -1}), "must be a user ID"),
            (json!({"capabilities": {"add": ["CAP_SYS_NICE"]}}), "\"CAP_SYS_NICE\""),
            (json!({"capabilities": {"add": [""]}}), "capabilities.add: \"\""),
        ] {
            let message = message(context).unwrap();
            assert!(message.contains(text), "{message}");
        }
    }
}
