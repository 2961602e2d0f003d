//! The served kinds: the built-in ones and those of the established `CustomResourceDefinitions`.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::builtin;
use crate::resource::Resource;

#[derive(Debug)]
pub struct Registry {
    builtin: Vec<Arc<Resource>>,
    /// The custom resources by the name of their definition.
    custom: BTreeMap<String, Arc<Resource>>,
}

impl Registry {
    pub fn new() -> Self {
        Self {
            builtin: builtin::resources().into_iter().map(Arc::new).collect(),
            custom: BTreeMap::new(),
        }
    }

    /// Replaces the resource of a definition; none when the definition is deleted or not
    /// established.
    pub fn set_custom(&mut self, definition: &str, resource: Option<Resource>) {
        match resource {
            Some(resource) => {
                self.custom.insert(definition.to_owned(), Arc::new(resource));
            }
            None => {
                self.custom.remove(definition);
            }
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.builtin.iter().chain(self.custom.values())
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.all().find(|resource| {
            resource.plural == plural && resource.version == version && resource.group == group
        })
    }

    /// Groups with their versions, in the order of discovery.
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
        groups
    }
}
