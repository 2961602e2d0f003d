//! A kubelet replaces `$(NAME)` and `$$` in the command, the arguments and the environment of a
//! container. This file escapes the texts of a Pod, so that each of them arrives as it is in the
//! spec, as on a node of an agent.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, PodSpec, Probe};

/// Escapes the texts of all containers, except those of [`referring`].
pub fn escape(pod: &mut PodSpec) {
    for container in pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()) {
        of_container(container);
    }
}

fn of_container(container: &mut Container) {
    let Container { startup_probe, readiness_probe, liveness_probe, .. } = container;
    let probes = [startup_probe, readiness_probe, liveness_probe].into_iter().flatten();
    let commands = probes.filter_map(|Probe { exec, .. }| exec.as_mut()?.command.as_mut());
    let texts = [&mut container.command, &mut container.args].into_iter().flatten();
    for text in texts.chain(commands).flatten() {
        *text = escaped(text);
    }
    for variable in container.env.iter_mut().flatten() {
        if is_referring(variable) {
            variable.value_from = None;
        } else if let Some(value) = &mut variable.value {
            *value = escaped(value);
        }
    }
}

/// A variable whose text refers to another one as `$(NAME)`. The rest of the text is escaped. The
/// other variable has to be before it in the container.
pub fn referring(name: &str, text: &str, other: &str) -> EnvVar {
    let reference = format!("$({other})");
    let parts: Vec<_> = text.split(&reference).map(escaped).collect();
    EnvVar {
        name: name.to_owned(),
        value: Some(parts.join(&reference)),
        // Marks it for `escape`. No other variable has both, and an API server refuses a Pod that
        // was not escaped.
        value_from: Some(EnvVarSource::default()),
    }
}

fn is_referring(variable: &EnvVar) -> bool {
    variable.value.is_some() && variable.value_from.is_some()
}

/// `$$` becomes `$`, and nothing else in the result has a meaning.
fn escaped(text: &str) -> String {
    text.replace('$', "$$")
}

/// What a kubelet makes of a container: its command, its arguments and its environment.
#[cfg(test)]
pub fn expanded(
    container: &Container,
) -> (Vec<String>, Vec<String>, std::collections::BTreeMap<String, String>) {
    use neptune_harness::expansion::{environment, expand};

    let variables = container.env.iter().flatten();
    let variables = variables.map(|it| (it.name.as_str(), it.value.as_deref()));
    let env = environment(variables, |name| format!("of {name}"));
    let all = |texts: &Option<Vec<String>>| {
        texts.iter().flatten().map(|text| expand(text, &env)).collect()
    };
    (all(&container.command), all(&container.args), env)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::core::v1::ExecAction;
    use neptune_harness::expansion;
    use proptest::prelude::*;

    use super::*;
    use crate::kubernetes::container::variable;

    /// Texts with many dollars, parentheses and names of variables.
    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            Just("$".to_owned()),
            Just("$(A)".to_owned()),
            Just("(B)".to_owned()),
            Just(")".to_owned()),
            any::<String>(),
        ];
        prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    fn pod(container: Container) -> PodSpec {
        PodSpec {
            init_containers: Some(vec![container.clone()]),
            containers: vec![container],
            ..PodSpec::default()
        }
    }

    proptest! {
        #[test]
        fn escaped_text_is_expanded_to_itself(
            text in text(),
            variables in prop::collection::btree_map("[A-C]?", text(), 0..4),
        ) {
            prop_assert_eq!(expansion::expand(&escaped(&text), &variables), text);
        }

        #[test]
        fn texts_of_every_container_arrive_as_they_are(
            command in prop::collection::vec(text(), 1..4),
            values in prop::collection::vec(text(), 3),
        ) {
            let names = ["A", "B", "C"];
            let env = names.iter().zip(&values).map(|(name, value)| variable(name, value));
            let container = Container {
                command: Some(command.clone()),
                args: Some(command.clone()),
                env: Some(env.collect()),
                startup_probe: Some(Probe {
                    exec: Some(ExecAction { command: Some(command.clone()) }),
                    ..Probe::default()
                }),
                ..Container::default()
            };
            let mut pod = pod(container);
            escape(&mut pod);
            for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
                let (of_command, args, env) = expanded(container);
                prop_assert_eq!((&of_command, &args), (&command, &command));
                prop_assert_eq!(env.into_values().collect::<Vec<_>>(), &values[..]);
                let probe = container.startup_probe.clone().unwrap().exec.unwrap().command;
                prop_assert_eq!(&probe, &container.command, "the kubelet expands it too");
            }
        }
    }

    #[test]
    fn own_reference_is_replaced_and_the_text_around_it_is_not() {
        let uid = EnvVar {
            name: "UID".to_owned(),
            value_from: Some(EnvVarSource::default()),
            ..EnvVar::default()
        };
        let url = referring("URL", "http://h/$(A)/$$/$(UID)/$", "UID");
        let env = vec![variable("A", "$(UID)"), uid.clone(), url];
        let mut pod = pod(Container { env: Some(env), ..Container::default() });
        escape(&mut pod);
        let container = &pod.containers[0];
        let (_, _, env) = expanded(container);
        let expected = [("A", "$(UID)"), ("UID", "of UID"), ("URL", "http://h/$(A)/$$/of UID/$")];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let env = container.env.as_ref().unwrap();
        assert_eq!((&env[1], &env[2].value_from), (&uid, &None), "what the API server accepts");
    }
}
