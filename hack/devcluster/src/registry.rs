//! Which kinds are served: the built-in ones and those of the established `CustomResourceDefinitions`. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::builtin;
use crate::resource::Resource;

#[derive(Debug)]
pub struct Registry {
    builtin: Vec<Arc<Resource>>,
    /// By the name of the definition.
    custom: BTreeMap<String, Vec<Arc<Resource>>>,
}

impl Registry {
    pub fn new() -> Self {
        Self {
            builtin: builtin::resources().into_iter().map(Arc::new).collect(),
            custom: BTreeMap::new(),
        }
    }

    /// Replaces what a definition serves; nothing when it is gone or not established.
    pub fn set_custom(&mut self, definition: &str, resources: Vec<Resource>) {
        if resources.is_empty() {
            self.custom.remove(definition);
        } else {
            self.custom
                .insert(definition.to_owned(), resources.into_iter().map(Arc::new).collect());
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.builtin.iter().chain(self.custom.values().flatten())
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.all().find(|resource| {
            resource.plural == plural && resource.version == version && resource.group == group
        })
    }

    /// Groups with their versions, preferred first, in the order of discovery.
    pub fn groups(&self) -> Vec<(String, Vec<String>)> {
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for resource in self.all() {
            let position = groups
                .iter()
                .position(|(group, _)| *group == resource.group)
                .unwrap_or_else(|| {
                    groups.push((resource.group.clone(), Vec::new()));
                    groups.len() - 1
                });
            let versions = &mut groups[position].1;
            if !versions.contains(&resource.version) {
                versions.push(resource.version.clone());
            }
        }
        for (_, versions) in &mut groups {
            versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        }
        groups
    }
}

/// Kubernetes' version order: v2 before v1 before v1beta1 before v1alpha2, anything else last.
fn priority(version: &str) -> (u8, u32, u32) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let (major, stage) =
        rest.find(|c: char| !c.is_ascii_digit()).map_or((rest, ""), |end| rest.split_at(end));
    let Ok(major) = major.parse() else { return (0, 0, 0) };
    let minor = |name: &str| stage.strip_prefix(name).and_then(|number| number.parse().ok());
    match (stage, minor("beta"), minor("alpha")) {
        ("", ..) => (3, major, 0),
        (_, Some(minor), _) => (2, major, minor),
        (_, _, Some(minor)) => (1, major, minor),
        _ => (0, 0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability() {
        let mut versions = vec!["v1alpha1", "foo", "v1", "v2beta1", "v10", "v1beta2"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v10", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]);
    }
}
